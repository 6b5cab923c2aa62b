"use strict";
const short = (value) =>
  Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
for (const place of document.querySelectorAll("[data-chart]")) {
  const { line, labels, series, unit } = JSON.parse(place.dataset.chart);
  if (!line) for (const list of [labels, ...series.map((each) => each.data)]) list.reverse();
  // A bar for nothing too, so that the total is written beside it.
  if (!line) for (const each of series) each.data = each.data.map((value) => value ?? 0);
  const side = Math.min(150, 24 + 7 * Math.max(...labels.map((label) => label.length)));
  const room = 20 + 8 * (unit.length + 7);
  const number = { onlyInteger: false, scaleMinSpace: 60, labelInterpolationFnc: short };
  const chart = line
    ? new Chartist.LineChart(place, { labels, series }, {
      low: 0, fullWidth: true, chartPadding: { right: 72, top: 24, left: 8 },
      lineSmooth: Chartist.Interpolation.none({ fillHoles: true }), axisX: { showGrid: false },
      axisY: { ...number, scaleMinSpace: 30, offset: 56 },
    })
    : new Chartist.BarChart(place, { labels, series }, {
      low: 0, horizontalBars: true, stackBars: true,
      chartPadding: { right: room, left: 0, top: 0 },
      axisX: number, axisY: { offset: side, showGrid: false },
    }, [["(max-width: 600px)", { axisY: { offset: Math.min(side, 104) } }]]);
  const write = ({ group }, text, x, y, kind) =>
    group.elem("text", { x, y, "text-anchor": kind === "total" ? "start" : "middle" }, kind).text(text);
  chart.on("draw", (part) => {
    const { type, index, seriesIndex, x1, x2, y2 } = part;
    if (type === "bar") {
      const text = short(series[seriesIndex].data[index]);
      // A bar of one part has its total beside it.
      const parts = series.filter((each) => each.data[index]).length;
      if (parts > 1 && x2 - x1 > 9 * text.length + 8) {
        write(part, text, (x1 + x2) / 2, y2 + 4, "inside");
      }
      if (seriesIndex === series.length - 1) {
        const total = series.reduce((sum, each) => sum + each.data[index], 0);
        write(part, `${short(total)} ${unit}`, x2 + 8, y2 + 4, "total");
      }
    } else if (type === "point" && labels.length <= 12) {
      // The label of the last point is beside it, where its own line cannot cross it.
      const isLast = index && index === labels.length - 1;
      const [right, up] = isLast ? [28, -4] : [index ? 0 : 14, 10];
      write(part, short(part.value.y), part.x + right, part.y - up, "inside point");
    }
  });
  // With a view box the drawing also fits paper, for which it is not drawn again.
  chart.on("created", ({ svg }) => {
    const { width, height } = svg.getNode().getBoundingClientRect();
    svg.attr({ viewBox: `0 0 ${width} ${height}` });
  });
}
for (const folded of document.querySelectorAll("details.data")) folded.open = false;
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not(.data)")) folded.open = true;
});
for (const section of document.querySelectorAll(".whatif")) {
  const given = Object.fromEntries(
    Object.entries(section.dataset).map(([name, value]) => [name, Number(value)]),
  );
  const slider = (name) => section.querySelector(`input[name=${name}]`);
  const say = (name, text) => {
    section.querySelector(`[data-say=${name}]`).textContent = text;
  };
  // The formulas, and where they are from, are in tpuctl/profiling/whatif.py.
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
  const predict = (vcpus, step, factor, growth, serial) => {
    const power = Math.log2(1 + growth);
    const cpu = given.cpu * factor * (vcpus / given.busy) ** power;
    const load = (given.batch * given.cpu * factor) / step / given.busy;
    const held = given.batch * serial * factor;
    return {
      idle: idleWith(Math.min((step * vcpus) / (given.batch * cpu), step / held)),
      needed: held > step ? Infinity : given.busy * load ** (1 / (1 - power)),
    };
  };
  const update = () => {
    const vcpus = Number(slider("vcpus").value);
    // Step times go from a millisecond to many seconds: the slider moves in powers from the given.
    const step = given.step * 10 ** (Number(slider("step").value) / given.scale);
    const { idle, needed } = predict(vcpus, step, 1, given.growth, given.serial);
    const ends = [
      [given.cpuLow, given.serial],
      [given.cpuHigh, given.serialMost],
    ].flatMap(([factor, serial]) =>
      [given.growthLow, given.growthHigh].map(
        (growth) => predict(vcpus, step, factor, growth, serial).idle,
      ),
    );
    say("vcpus", String(vcpus));
    say("step", step.toPrecision(4));
    slider("step").setAttribute("aria-valuetext", `${step.toPrecision(4)} ms`);
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
