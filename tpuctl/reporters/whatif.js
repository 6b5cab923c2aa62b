"use strict";
for (const section of document.querySelectorAll(".whatif")) {
  const { batch, cpu, scale } = Object.fromEntries(
    Object.entries(section.dataset).map(([name, value]) => [name, Number(value)]),
  );
  const slider = (name) => section.querySelector(`input[name=${name}]`);
  const say = (name, text) => {
    section.querySelector(`[data-say=${name}]`).textContent = text;
  };
  const update = () => {
    const vcpus = Number(slider("vcpus").value);
    // Step times go from a millisecond to many seconds: the slider moves in powers.
    const step = 10 ** (Number(slider("step").value) / scale);
    const needed = (batch * cpu) / step;
    const rate = Math.min(batch / step, vcpus / cpu) * 1000;
    const idle = Math.max(0, 1 - vcpus / needed);
    say("vcpus", String(vcpus));
    say("step", step.toPrecision(4));
    say("rate", rate.toFixed(1));
    say("idle", (100 * idle).toFixed(1));
    say("needed", needed.toPrecision(3));
    section.querySelector("i").style.setProperty("--share", idle.toFixed(4));
  };
  section.addEventListener("input", update);
  update();
}
