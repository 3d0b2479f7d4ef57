const { pairs, areas: areaCounts } = data;
const BINS = 40;

function countBy(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

// ---- one pair ------------------------------------------------------------------------------------------

function drawn(pair, index) {
  const element = make("figure");
  const frame = make("div", "frame");
  const image = make("img");
  image.decoding = "async";
  [image.width, image.height] = pair.size;
  image.alt = `picture ${index + 1} of ${pair.id}`;
  picture(image, pair, index);
  frame.append(image);
  pair.areas.forEach((area, number) => {
    const box = make("div", "box " + (area.reason === null ? "kept" : "left-out"));
    place(box, area.box);
    box.append(make("b", "", String(number + 1)));
    frame.append(box);
  });
  element.append(frame);
  return element;
}

const scoresOf = (scores) => Object.entries(scores).map(([name, value]) => `${name} ${value.toFixed(3)}`).join(", ");

function areaTable(pair) {
  const table = make("table", "areas");
  pair.areas.forEach((area, number) => {
    const row = make("tr");
    const state_ = make("td", area.reason === null ? "yes" : "no");
    state_.textContent = area.reason === null ? "✓ kept" : `✗ ${area.reason}`;
    if (area.details) state_.append(make("div", "quiet", area.details));
    const said = make("td");
    area.texts.forEach((text) => said.append(make("div", "", text)));
    row.append(make("td", "number", String(number + 1)), state_, said, make("td", "quiet", scoresOf(area.scores)));
    table.append(row);
  });
  return table;
}

function article(pair) {
  const element = make("article");
  const pictures = make("div", "pictures");
  for (let index = 0; index < pair.pictures; index++) pictures.append(drawn(pair, index));
  const text = make("div");
  const head = make("div", "head");
  head.append(make("span", "id", pair.id));
  if (pair.kind !== null) head.append(make("span", "kind", pair.kind));
  head.append(make("span", pair.reason === null ? "state-kept" : "state-dropped", pair.reason ?? "kept"));
  if (pair.details) head.append(make("span", "", pair.details));
  head.append(make("span", "scores", scoresOf(pair.scores)));
  text.append(head);
  pair.texts.forEach((said) => text.append(make("p", "", said)));
  if (pair.areas.length) text.append(areaTable(pair));
  if (pair.history.length) {
    const history = make("details", "history");
    history.append(make("summary", "", "what made it"));
    pair.history.forEach((line) => history.append(make("div", "", line)));
    text.append(history);
  }
  element.append(pictures, text);
  return element;
}

// ---- thresholds ----------------------------------------------------------------------------------------

const scored = new Map(); // name of a score -> [{value, kept}]
for (const pair of pairs) {
  const note = (prefix, scores, kept) => Object.entries(scores).forEach(([name, value]) => {
    const key = prefix + name;
    if (!scored.has(key)) scored.set(key, []);
    scored.get(key).push({ value, kept });
  });
  note("pair: ", pair.scores, pair.reason === null);
  pair.areas.forEach((area) => note("area: ", area.scores, area.reason === null));
}

function drawBars() {
  const values = scored.get($("score").value);
  const low = Math.min(...values.map((v) => v.value)), high = Math.max(...values.map((v) => v.value));
  const width = (high - low) / BINS || 1;
  const cut = low + (high - low) * $("cut").value / 1000;
  const bins = Array.from({ length: BINS }, () => [0, 0]);
  for (const { value, kept } of values) bins[Math.min(BINS - 1, Math.floor((value - low) / width))][kept ? 0 : 1] += 1;
  const most = Math.max(...bins.map(([kept, out]) => kept + out));
  $("bars").replaceChildren(...bins.map(([kept, out], number) => {
    const bar = make("div", low + (number + 0.5) * width < cut ? "below" : "");
    const part = (count, name) => { const i = make("i", name); i.style.height = `${100 * count / most}%`; return i; };
    bar.append(part(out, "out"), part(kept, ""));
    bar.title = `${(low + number * width).toFixed(3)}: ${kept} kept, ${out} left out`;
    return bar;
  }));
  const above = values.filter((v) => v.value > cut);
  $("cut-value").textContent = cut.toFixed(3);
  $("cut-counts").textContent = `${above.length} of ${values.length} lie above (now kept: ${above.filter((v) => v.kept).length}), ` +
    `${values.length - above.length} below (now kept: ${values.filter((v) => v.kept && v.value <= cut).length})`;
}

// ---- which pairs, in which order -----------------------------------------------------------------------

function fill() {
  option($("reason"), "", `all (${pairs.length})`);
  countBy(pairs.map((pair) => pair.reason ?? "kept")).forEach(([name, n]) => option($("reason"), "=" + name, `${name} (${n})`));
  option($("area-reason"), "", "all");
  Object.entries(areaCounts).sort((a, b) => b[1] - a[1]).forEach(([name, n]) => option($("area-reason"), "=" + name, `${name} (${n})`));
  $("area-reason").parentElement.hidden = !Object.keys(areaCounts).length;
  option($("kind"), "", "all");
  countBy(pairs.map((pair) => pair.kind).filter((kind) => kind !== null)).forEach(([name, n]) => option($("kind"), "=" + name, `${name} (${n})`));
  $("kind").parentElement.hidden = $("kind").options.length < 2;
  option($("order"), "", "as made");
  for (const name of new Set(pairs.flatMap((pair) => Object.keys(pair.scores)))) {
    option($("order"), `1 ${name}`, `${name}, lowest first`);
    option($("order"), `-1 ${name}`, `${name}, highest first`);
  }
  $("boxes").parentElement.hidden = !Object.keys(areaCounts).length;
  for (const name of scored.keys()) option($("score"), name, name);
  $("tuning").hidden = !scored.size;
  if (scored.size) drawBars();
}

function found() {
  const reason = $("reason").value, areaReason = $("area-reason").value, kind = $("kind").value;
  const words = wordsAsked();
  const chosen = pairs.filter((pair) => {
    if (reason && "=" + (pair.reason ?? "kept") !== reason) return false;
    if (areaReason && !pair.areas.some((area) => "=" + (area.reason ?? "kept") === areaReason)) return false;
    if (kind && "=" + pair.kind !== kind) return false;
    const text = [pair.id, ...pair.texts, ...pair.areas.flatMap((area) => area.texts)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const [sign, ...rest] = $("order").value.split(" ");
  return sign ? sorted(chosen, (pair) => pair.scores[rest.join(" ")] ?? null, sign) : chosen;
}

for (const id of ["score", "cut"]) $(id).addEventListener("input", drawBars);
fill();
begin();
