"""Programs to lint: texts as scripts and notebooks, and the seeds' old code in our own words."""

import json
import re
from pathlib import Path
from typing import Any

from tpuctl.linting.documents import Document, read_notebook, read_script
from tpuctl.linting.lint import Placed, Selection, check
from tpuctl.linting.targets import target

_RUNTIME = re.compile(r"# tpuctl: runtime (\S+)")
_COLAB = {"accelerator": "TPU", "colab": {"name": "old.ipynb"}}


def notebook(*cells: str, indent: int = 1, **metadata: Any) -> str:
    """The JSON of a notebook; a cell that begins with # % is text."""
    made: list[dict[str, Any]] = []
    for text in cells:
        source = text.strip("\n").splitlines(keepends=True)
        if text.startswith("# %"):
            made.append({"cell_type": "markdown", "metadata": {}, "source": source})
            continue
        output = {"name": "stdout", "output_type": "stream", "text": ["done ✓\n"]}
        made.append(
            {
                "cell_type": "code",
                "execution_count": 7,
                "metadata": {"id": "x"},
                "outputs": [output],
                "source": source,
            }
        )
    document = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def documents(text: str, **metadata: Any) -> list[Document]:
    """A script; a notebook where the text has magics, or metadata is given."""
    if metadata or re.search(r"^\s*[%!]", text, re.MULTILINE):
        return read_notebook(Path("case.ipynb"), notebook(text, **metadata))
    return [read_script(Path("case.py"), text)]


def placed(text: str, runtime: str | None = None, **metadata: Any) -> list[Placed]:
    """What is found in a text; a comment in it can name the runtime."""
    named = _RUNTIME.search(text)
    where = target(named[1] if named else runtime)
    return [
        each
        for document in documents(text, **metadata)
        for each in check(document, where, Selection())
    ]


def codes(text: str, runtime: str | None = None, **metadata: Any) -> set[str]:
    """The codes of what is found in a text."""
    return {each.finding.code for each in placed(text, runtime, **metadata)}


def lines(text: str, code: str, runtime: str | None = None) -> set[int]:
    """The lines that a rule is about."""
    return {each.finding.line for each in placed(text, runtime) if each.finding.code == code}


# In the seeds below, a line that no longer works ends with the codes that must name it.
_MARK = re.compile(r"\s*#! (.*)$")


def marked(text: str) -> tuple[str, dict[int, set[str]]]:
    """The text without its marks, and the codes by line."""
    wanted, plain = {}, []
    for number, line in enumerate(text.strip("\n").split("\n"), 1):
        if mark := _MARK.search(line):
            wanted[number] = set(mark[1].split())
        plain.append(_MARK.sub("", line))
    return "\n".join(plain) + "\n", wanted


GPU_AGAINST_TPU = (
    "# % GPU against TPU, as in seed A",
    """
%tensorflow_version 1.x
import os
import time
import numpy as np
import tensorflow as tf
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPooling2D
""",
    "tpu = True  # False: a GPU",
    """
with np.load("digits.npz") as data:
    x_train, y_train = data["x"], data["y"]
x_train = x_train.reshape(-1, 28, 28, 1).astype('float32') / 255
y_train = tf.keras.utils.to_categorical(y_train, 10)
""",
    """
def make_model():
    model = Sequential()
    model.add(Conv2D(64, kernel_size=2, padding='same', activation='relu',
                     input_shape=(28, 28, 1)))
    model.add(MaxPooling2D(pool_size=2))
    model.add(Dropout(0.3))
    model.add(Flatten())
    model.add(Dense(256, activation='relu'))   # wide  enough
    model.add(Dense(10, activation='softmax'))
    return model

model = make_model()
model.compile(loss='categorical_crossentropy', metrics=['accuracy'],
              optimizer=tf.train.AdamOptimizer(learning_rate=0.001))
""",
    """
if tpu:
    # the address of the node
    TPU_WORKER = 'grpc://' + os.environ['COLAB_TPU_ADDR']
    tf.logging.set_verbosity(tf.logging.INFO)
    model = tf.contrib.tpu.keras_to_tpu_model(
        model,
        strategy=tf.contrib.tpu.TPUDistributionStrategy(
            tf.contrib.cluster_resolver.TPUClusterResolver(TPU_WORKER)))
""",
    """
times = []
class Clock(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.time()
    def on_epoch_end(self, epoch, logs=None):
        times.append(time.time() - self.began)

history = model.fit(x_train, y_train, epochs=2, batch_size=32, callbacks=[Clock()], verbose=0)
print('ran', len(times), 'epochs')
""",
)

FASHION = (
    """
import os
import pprint
import numpy as np
import tensorflow as tf

if 'COLAB_TPU_ADDR' not in os.environ:
    print('ERROR: not connected to a TPU runtime')
else:
    tpu_address = 'grpc://' + os.environ['COLAB_TPU_ADDR']
    print('The TPU is at', tpu_address)

    with tf.compat.v1.Session(tpu_address) as session:
        devices = session.list_devices()

    pprint.pprint(devices)
""",
    """
tpu = tf.distribute.cluster_resolver.TPUClusterResolver(
    tpu='grpc://' + os.environ['COLAB_TPU_ADDR'])
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.experimental.TPUStrategy(tpu)
print(strategy.num_replicas_in_sync)
""",
    """
with np.load("digits.npz") as data:
    x_train, y_train = data["x"][:, :, :, None], data["y"]
""",
    """
def create_model():
    model = tf.keras.models.Sequential()
    model.add(tf.keras.layers.Conv2D(64, (3, 3), input_shape=x_train.shape[1:]))
    model.add(tf.keras.layers.MaxPooling2D(pool_size=(2, 2), strides=(2, 2)))
    model.add(tf.keras.layers.Activation('relu'))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(10))
    model.add(tf.keras.layers.Activation('softmax'))
    return model

with strategy.scope():
    model = create_model()
    # The loss takes class numbers.
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3),
        loss=tf.keras.losses.sparse_categorical_crossentropy,
        metrics=[tf.keras.metrics.sparse_categorical_accuracy])

model.fit(
    x_train.astype(np.float32), y_train.astype(np.float32),
    epochs=2,
    steps_per_epoch=2,
    validation_data=(x_train.astype(np.float32), y_train.astype(np.float32)),
    validation_freq=2,
    verbose=0,
)
print('ran', model.optimizer.iterations.value, 'steps')
""",
)

SURVIVAL_GUIDE = """
import os
import tensorflow as tf
from tensorflow.keras.layers import Input, LSTM, Dense, Embedding
from tensorflow.keras.preprocessing.sequence import pad_sequences
from tensorflow.contrib.tpu.python.tpu import keras_support  #! T101

try:
    device_name = os.environ['COLAB_TPU_ADDR']  #! T105
    TPU_ADDRESS = 'grpc://' + device_name
except KeyError:
    print('no TPU')

def make_model(batch_size=None):
    source = Input(shape=(250,), batch_size=batch_size, dtype=tf.int32)
    embedding = Embedding(input_dim=15000, output_dim=32)(source)
    lstm = LSTM(100)(embedding)
    predicted = Dense(1, activation='sigmoid')(lstm)
    model = tf.keras.Model(inputs=[source], outputs=[predicted])
    model.compile(
        optimizer=tf.train.RMSPropOptimizer(learning_rate=0.01),  #! T103
        loss='binary_crossentropy', metrics=['acc'])
    return model

tf.keras.backend.clear_session()
training_model = make_model(batch_size=128)
tpu_model = tf.contrib.tpu.keras_to_tpu_model(  #! T101
    training_model,
    strategy=tf.contrib.tpu.TPUDistributionStrategy(  #! T101
        tf.contrib.cluster_resolver.TPUClusterResolver(TPU_ADDRESS)))  #! T101
tpu_model.fit(x_train, y_train, epochs=20, batch_size=128 * 8)
tpu_model.save_weights('./tpu_model.h5', overwrite=True)  #! T116
tpu_model.evaluate(x_test, y_test, batch_size=128 * 8)
cpu_model = tpu_model.sync_to_cpu()  #! T116
cpu_model.predict(x_test[:6])
"""

KAGGLE_UTILITY = """
import os
import torch
import torch_xla.core.xla_model as xm  #! T201
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

os.environ['XLA_USE_BF16'] = '1'  #! T303
device = xm.xla_device()  #! T311
state = torch.load('resnet.pth')  #! T312

def train(index, flags):
    sampler = DistributedSampler(
        dataset, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal())  #! T110
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=4)  #! T407
    device_loader = pl.MpDeviceLoader(loader, xm.xla_device())
    for images, labels in device_loader:
        loss = loss_function(model(images), labels)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.item())  #! T409
        xm.mark_step()  #! T415

xmp.spawn(train, args=({},), nprocs=8, start_method='fork')  #! T111
"""

WITHOUT_ESTIMATOR = """
import os
import tensorflow as tf
from tensorflow.contrib import tpu  #! T101
from tensorflow.contrib.cluster_resolver import TPUClusterResolver  #! T101

x = tf.placeholder(tf.float32, [1, 5])  #! T102
y = tf.placeholder(tf.float32, [1, 3])  #! T102

def network(x):
    hidden = tf.layers.dense(x, 256, activation=tf.nn.sigmoid)  #! T103
    return tf.layers.dense(hidden, 3)  #! T103

loss = tf.losses.softmax_cross_entropy(y, network(x))  #! T103
optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.01))  #! T101 T103
step = optimizer.minimize(loss)
tpu_grpc_url = TPUClusterResolver(tpu=[os.environ['TPU_NAME']]).get_master()  #! T101

with tf.Session(tpu_grpc_url) as sess:  #! T102
    sess.run(tpu.initialize_system())  #! T101
    sess.run(tf.global_variables_initializer())  #! T102
    for i in range(100):
        sess.run(step, feed_dict={x: iris[i], y: labels[i]})  #! T102
    saver = tf.train.Saver()  #! T103
    saver.save(sess, '/tmp/iris/model')  #! T301
    sess.run(tpu.shutdown_system())  #! T101
"""


def colab(cells: tuple[str, ...], indent: int = 1) -> str:
    """A notebook as Colab saved it for its TPU."""
    return notebook(*cells, indent=indent, **_COLAB)
