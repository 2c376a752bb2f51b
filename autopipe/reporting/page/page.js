"use strict";
// Draws the timelines: one path for each rank, stage colour and kind, over the part of the step that is in view.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("timeline"), shown = document.getElementById("window");
  const pointed = document.getElementById("pointed");
  const KINDS = ["F", "B", "I", "W"], STYLES = ["forward", "backward", "input-grad", "weight-grad", "optimizer"];
  const GAPS = ["waiting", "link", "sending", "overhead"];
  const WHY = {
    none: "between two actions", "warm-up": "nothing to do yet: warm-up", "cool-down": "done, others are not: cool-down",
    link: "its message is on its way", sending: "sending", waiting: "what it needs is not computed yet",
    overhead: "between actions: overhead", tail: "the step's end: sums of gradients, other ranks' optimizers",
  };
  const KEYS = {
    "+": "in", "=": "in", "-": "out", 0: "all", n: "next", p: "previous",
    ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
  };
  const LABEL = 62, TITLE = 20, AXIS = 18, SVG = "http://www.w3.org/2000/svg";
  const longest = Math.max(1, ...data.tracks.map((track) => track.step_ns));
  const rows = data.tracks.flatMap((track, t) => track.ranks.map((flat, rank) => unpack(track, t, flat, rank)));
  const tall = rows.length > 40 ? 10 : 18;
  let from = 0, to = longest, picked = null;

  function unpack(track, t, flat, rank) {
    const count = (flat.length - 1) / 6, begin = new Float64Array(count), end = new Float64Array(count);
    for (let i = 0, at = 0; i < count; i++) {
      begin[i] = (at += flat[6 * i + 3]) * track.tick_ns;
      end[i] = (at += flat[6 * i + 4]) * track.tick_ns;
    }
    return { track: t, rank, flat, begin, end, count };
  }

  function time(ns) {
    const [unit, size] = longest >= 1e9 ? ["s", 1e9] : longest >= 1e6 ? ["ms", 1e6] : ["us", 1e3];
    return (ns / size).toFixed(2) + " " + unit;
  }

  function element(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function top(row) {
    return AXIS + TITLE * (rows[row].track + 1) + row * (tall + 3);
  }

  function firstAfter(values, count, bound) {
    let low = 0, high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > bound) high = middle; else low = middle + 1;
    }
    return low;
  }

  function draw() {
    const width = Math.max(box.clientWidth - 4, 280), scale = (width - LABEL - 8) / (to - from);
    const height = top(rows.length - 1) + tall + 6;
    const x = (ns) => LABEL + (Math.min(Math.max(ns, from), to) - from) * scale;
    const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    svg.append(element("text", { x: LABEL, y: 13 }, time(from)));
    svg.append(element("text", { x: width - 8, y: 13, "text-anchor": "end" }, time(to)));
    rows.forEach((row, index) => {
      const y = top(index);
      if (row.rank === 0) {
        const track = data.tracks[row.track];
        svg.append(element("text", { x: 4, y: y - 6 }, `${track.name}: ${time(track.step_ns)}`));
      }
      svg.append(element("text", { x: 4, y: y + tall - (tall > 12 ? 5 : 1) }, `rank ${row.rank}`));
      svg.append(element("rect", { class: "lane", x: LABEL, y, width: width - LABEL - 8, height: tall }));
      gaps(svg, row, y, x);
      const paths = new Map();
      for (let i = firstAfter(row.end, row.count, from); i < row.count && row.begin[i] < to; i++) {
        const kind = row.flat[6 * i], colour = row.flat[6 * i + 1] % data.palette.length;
        const left = x(row.begin[i]), right = Math.max(x(row.end[i]) - 0.4, left + 0.3), key = kind * 64 + colour;
        paths.set(key, (paths.get(key) || "") + `M${left.toFixed(1)} ${y}H${right.toFixed(1)}V${y + tall}H${left.toFixed(1)}z`);
      }
      for (const [key, d] of paths) {
        const kind = key >> 6, colour = key & 63;
        const path = element("path", { class: `action ${STYLES[kind]}`, d });
        if (kind === 3) path.style.fill = `url(#hatch${colour})`;
        if (kind < 4) path.style.color = data.palette[colour];
        svg.append(path);
      }
      if (tall > 12) label(svg, row, y, x);
    });
    if (picked && picked.end > from && picked.begin < to) {
      const left = x(picked.begin);
      svg.append(element("rect", { class: "picked", x: left, y: top(picked.row), width: Math.max(x(picked.end) - left, 1), height: tall }));
    }
    box.replaceChildren(svg);
    shown.textContent = `${time(from)} to ${time(to)}`;
  }

  function gap(row, i) {
    const begin = i > 0 ? row.end[i - 1] : 0, end = i < row.count ? row.begin[i] : data.tracks[row.track].step_ns;
    return { begin, end: Math.max(begin, end), cause: data.causes[row.flat[6 * i + (i < row.count ? 5 : 0)]] };
  }

  function gaps(svg, row, y, x) {
    const paths = {};
    for (let i = firstAfter(row.end, row.count, from); i <= row.count; i++) {
      const { begin, end, cause } = gap(row, i), left = x(begin), right = x(end);
      if (begin > to) break;
      if (right - left >= 1) paths[cause] = (paths[cause] || "") + `M${left.toFixed(1)} ${y}H${right.toFixed(1)}V${y + tall}H${left.toFixed(1)}z`;
    }
    for (const cause in paths)
      if (GAPS.includes(cause)) svg.append(element("path", { class: `idle-${cause}`, d: paths[cause] }));
  }

  function label(svg, row, y, x) {
    for (let i = firstAfter(row.end, row.count, from); i < row.count && row.begin[i] < to; i++) {
      const kind = row.flat[6 * i], text = kind < 4 ? KINDS[kind] + row.flat[6 * i + 2] : "opt";
      const left = x(row.begin[i]), right = x(row.end[i]);
      if (right - left > 7 * text.length + 4)
        svg.append(element("text", { class: `on ${STYLES[kind]}`, x: (left + right) / 2, y: y + tall - 5, "text-anchor": "middle" }, text));
    }
  }

  function show(start, span) {
    from = Math.min(Math.max(start, 0), longest - span);
    to = from + span;
    draw();
  }

  function zoom(factor, centre) {
    const span = Math.min((to - from) * factor, longest);
    if (span >= 10) show(centre - (span * (centre - from)) / (to - from), span);
  }

  const commands = {
    in: () => zoom(0.5, (from + to) / 2),
    out: () => zoom(2, (from + to) / 2),
    left: () => show(from - (to - from) / 4, to - from),
    right: () => show(from + (to - from) / 4, to - from),
    all: () => show(0, longest),
    next: () => step(1),
    previous: () => step(-1),
    up: () => turn(-1),
    down: () => turn(1),
  };

  function at(event) {
    const frame = box.firstChild.getBoundingClientRect(), y = event.clientY - frame.top;
    const ns = from + ((event.clientX - frame.left - LABEL) / (frame.width - LABEL - 8)) * (to - from);
    const index = rows.findIndex((_, row) => y >= top(row) && y <= top(row) + tall);
    return { ns, index };
  }

  function describe({ ns, index }) {
    if (index < 0 || ns < 0) return null;
    const row = rows[index], i = firstAfter(row.end, row.count, ns), where = `${data.tracks[row.track].name}, rank ${row.rank}`;
    if (i < row.count && row.begin[i] <= ns) {
      const kind = row.flat[6 * i], begin = row.begin[i], end = row.end[i];
      const what = kind < 4 ? `${KINDS[kind]} of micro-batch ${row.flat[6 * i + 2]} on stage ${row.flat[6 * i + 1]}` : "optimizer";
      return { row: index, i, begin, end, text: `${where}: ${what}, ${time(begin)} to ${time(end)}, takes ${time(end - begin)}.` };
    }
    const { begin, end, cause } = gap(row, i);
    return { row: index, i, begin, end, text: `${where}: idle ${time(begin)} to ${time(end)}, ${time(end - begin)}, ${WHY[cause]}.` };
  }

  function pick(found) {
    if (!found) return;
    picked = found;
    pointed.textContent = found.text;
    const span = to - from, away = found.end < from || found.begin > to;
    if (away) show((found.begin + found.end - span) / 2, span); else draw();
  }

  function step(by) {
    const index = picked ? picked.row : 0, row = rows[index], i = Math.min(Math.max(picked ? picked.i + by : 0, 0), row.count - 1);
    if (i >= 0) pick(describe({ ns: (row.begin[i] + row.end[i]) / 2, index }));
  }

  function turn(by) {
    const index = Math.min(Math.max(picked ? picked.row + by : 0, 0), rows.length - 1);
    pick(describe({ ns: picked ? (picked.begin + picked.end) / 2 : 0, index }));
  }

  box.addEventListener("click", (event) => pick(describe(at(event))));
  box.addEventListener("mousemove", (event) => {
    pointed.textContent = (describe(at(event)) || { text: pointed.textContent }).text;
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event).ns);
  }, { passive: false });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const command = KEYS[event.key];
    if (command) { event.preventDefault(); commands[command](); }
  });
  document.querySelectorAll("[data-do]").forEach((button) => {
    button.addEventListener("click", () => commands[button.dataset.do]());
  });
  new ResizeObserver(draw).observe(box);
})();
