"use strict";
for (const section of document.querySelectorAll(".whatif")) {
  const given = Object.fromEntries(
    Object.entries(section.dataset).map(([name, value]) => [name, Number(value)]),
  );
  const slider = (name) => section.querySelector(`input[name=${name}]`);
  const say = (name, text) => {
    section.querySelector(`[data-say=${name}]`).textContent = text;
  };
  // The formulas, and where they are from, are in tpuctl/pipeline/whatif.py.
  const idleWith = (room) => {
    const spare = room - 1;
    let waits = Math.max(0, -spare);
    if (given.unevenness) {
      const steepness = (2 * given.ahead) / given.unevenness;
      const exponent = Math.min(500, steepness * spare);
      waits = exponent ? spare / Math.expm1(exponent) : 1 / steepness;
    }
    return waits / (room + waits);
  };
  const predict = (vcpus, step, factor, growth) => {
    const power = Math.log2(1 + growth);
    const cpu = given.cpu * factor * (vcpus / given.busy) ** power;
    const load = (given.batch * given.cpu * factor) / step / given.busy;
    const held = given.batch * given.serial * factor;
    return {
      idle: idleWith(Math.min((step * vcpus) / (given.batch * cpu), step / held)),
      needed: held > step ? Infinity : given.busy * load ** (1 / (1 - power)),
    };
  };
  const update = () => {
    const vcpus = Number(slider("vcpus").value);
    // Step times go from a millisecond to many seconds: the slider moves in powers.
    const step = 10 ** (Number(slider("step").value) / given.scale);
    const { idle, needed } = predict(vcpus, step, 1, given.growth);
    const ends = [given.cpuLow, given.cpuHigh].flatMap((factor) =>
      [given.growthLow, given.growthHigh].map(
        (growth) => predict(vcpus, step, factor, growth).idle,
      ),
    );
    say("vcpus", String(vcpus));
    say("step", step.toPrecision(4));
    say("rate", ((given.batch / step) * (1 - idle) * 1000).toFixed(1));
    say("idle", (100 * idle).toFixed(1));
    say("least", (100 * Math.min(...ends)).toFixed(1));
    say("most", (100 * Math.max(...ends)).toFixed(1));
    say("needed", Number.isFinite(needed) ? needed.toPrecision(3) : "more than any number of");
    section.querySelector("i").style.setProperty("--share", idle.toFixed(4));
  };
  section.addEventListener("input", update);
  update();
}
