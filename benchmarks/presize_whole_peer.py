"""One whole presize with somebody else's tools: NAME SOURCE TARGET, as its users write it."""

import sys
from multiprocessing import Pool
from pathlib import Path

SIDE = 224


def vips_shard(job: "tuple[int, list[str], str]") -> None:
    import pyvips
    import webdataset

    number, paths, target = job
    pyvips.cache_set_max(0)
    with webdataset.TarWriter(f"{target}/{number:05}.tar") as writer:
        for index, path in enumerate(paths):
            image = pyvips.Image.thumbnail_buffer(
                Path(path).read_bytes(), SIDE, height=SIDE, crop="centre"
            )
            data = image.jpegsave_buffer(Q=95, subsample_mode="off")
            writer.write({"__key__": f"{number}-{index}", "jpg": data, "cls": 0})


def pyvips_webdataset(source: str, target: str) -> None:
    paths = sorted(str(path) for path in Path(source).rglob("*.jpg"))
    with Pool(2) as pool:
        pool.map(vips_shard, [(n, paths[n::4], target) for n in range(4)], chunksize=1)


def tf_data(source: str, target: str) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)

    def shrink(path: "tf.Tensor") -> "tf.Tensor":
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3, ratio=2)
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        scale = SIDE / tf.reduce_min(size)
        image = tf.image.resize(
            image, tf.cast(tf.math.ceil(size * scale), tf.int32), antialias=True
        )
        image = tf.image.resize_with_crop_or_pad(image, SIDE, SIDE)
        image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        return tf.io.encode_jpeg(image, quality=95, chroma_downsampling=False)

    paths = sorted(str(path) for path in Path(source).rglob("*.jpg"))
    pictures = tf.data.Dataset.from_tensor_slices(paths).map(shrink, num_parallel_calls=2)
    with tf.io.TFRecordWriter(f"{target}/shard.tfrecord") as writer:
        for data in pictures.prefetch(8).as_numpy_iterator():
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def img2dataset(source: str, target: str) -> None:
    from img2dataset import download

    urls = Path(target) / "urls.txt"
    urls.write_text("".join(f"{path.as_uri()}\n" for path in sorted(Path(source).rglob("*.jpg"))))
    download(
        url_list=str(urls),
        output_folder=f"{target}/out",
        output_format="webdataset",
        image_size=SIDE,
        resize_mode="center_crop",
        encode_quality=95,
        processes_count=2,
        thread_count=4,
        number_sample_per_shard=80,
    )


CANDIDATES = {
    "pyvips and webdataset": pyvips_webdataset, "tf.data": tf_data, "img2dataset": img2dataset,
}  # fmt: skip

if __name__ == "__main__":
    CANDIDATES[sys.argv[1]](sys.argv[2], sys.argv[3])
