const { pairs, metrics, facts } = data;
const fewReferences = () => ($("view").value === "sheet" ? 1 : 3);

// ---- words that caption and reference share ------------------------------------------------------------

const WORD = /[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu;
const wordsOf = (text) => [...text.matchAll(WORD)].map((m) => ({ word: m[0].toLowerCase(), from: m.index, to: m.index + m[0].length }));
const gram = (words, from, n) => words.slice(from, from + n).map((w) => w.word).join(" ");

function gramsOf(texts) {
  const known = new Set();
  for (const text of texts) {
    const words = wordsOf(text);
    for (let n = 1; n <= 4; n++) for (let i = 0; i + n <= words.length; i++) known.add(gram(words, i, n));
  }
  return known;
}

// marks every word with the length of the longest shared sequence that contains it, up to four words
function marked(text, known) {
  const words = wordsOf(text);
  const length = new Array(words.length).fill(0);
  for (let n = 1; n <= 4; n++) {
    for (let i = 0; i + n <= words.length; i++) if (known.has(gram(words, i, n))) length.fill(n, i, i + n);
  }
  const parts = [];
  let at = 0;
  for (let i = 0; i < words.length; ) {
    let end = i;
    while (end + 1 < words.length && length[end + 1] === length[i]) end++;
    parts.push(text.slice(at, words[i].from));
    const inside = text.slice(words[i].from, words[end].to);
    parts.push(length[i] ? make("mark", "m" + length[i], inside) : inside);
    at = words[end].to;
    i = end + 1;
  }
  parts.push(text.slice(at));
  return parts;
}

// ---- one pair ------------------------------------------------------------------------------------------

function image(pair, side) {
  const element = make("img");
  element.decoding = "async";
  const [top, bottom] = rowsOf(pair);
  [element.width, element.height] = [pair.size[0], bottom - top]; // reserves the space before the image is loaded
  element.alt = `${side ? "after" : "before"}, ${pair.id}`;
  picture(element, pair, side);
  return element;
}

// rows that the small image shows; of a tall page it shows a part
function rowsOf(pair) {
  return pair.rows ?? [0, pair.size[1]];
}

function boxesOf(pair, side, [top, bottom] = [0, pair.size[1]]) {
  const inside = (y) => (y * pair.size[1] - top) / (bottom - top);
  return (pair.boxes[side] ?? []).map(([x1, y1, x2, y2], number) => {
    const element = make("div", "box");
    place(element, [x1, inside(y1), x2, inside(y2)]);
    if (!number) element.append(make("span", "", data.box_label));
    return element;
  });
}

function figure(pair, kind) {
  const element = make("figure", kind);
  const frame = make("button", "frame" + (pair.size[0] < 32 ? " tiny" : ""));
  frame.type = "button";
  const stack = make("span", "stack");
  const sides = kind === "before" ? [0] : kind === "after" ? [1] : [0, 1];
  stack.append(...sides.map((side) => image(pair, side)));
  frame.append(stack);
  if (sides.length === 1) frame.append(...boxesOf(pair, sides[0], rowsOf(pair)));
  frame.addEventListener("click", () => enlarge(state.found.indexOf(pair)));
  const name = { blink: "before ⇄ after", difference: "difference ×2" }[kind] ?? kind;
  const part = pair.rows ? `, rows ${pair.rows[0] + 1} to ${pair.rows[1]} of ${pair.size[1]}` : "";
  element.append(frame, make("figcaption", "", name + part));
  return element;
}

const VIEWS = { two: ["before", "after"], three: ["before", "after", "difference"], blink: ["blink"], sheet: ["before", "after"] };

function article(pair) {
  const element = make("article");
  const pictures = make("div", "pictures");
  if (pair.pictures) pictures.append(...VIEWS[$("view").value].map((kind) => figure(pair, kind)));
  const text = make("div");
  const head = make("div", "head");
  const link = make("a", "id", pair.id);
  link.href = address({ pair: pair.id });
  link.title = "link to this pair";
  head.append(link);
  if (pair.type !== null) head.append(make("span", "kind", pair.type));
  const scores = make("span", "scores");
  for (const name of metrics) {
    if (typeof pair.scores[name] !== "number") continue;
    const main = name === metrics[0];
    const score = make("span", "", `${name} `);
    score.append(make(main ? "b" : "span", "", pair.scores[name].toFixed(main ? 0 : 1)));
    scores.append(score);
  }
  if (pair.change_score !== null) scores.append(make("span", "", `change score ${pair.change_score.toFixed(2)}`));
  if (pair.log_prob !== null) scores.append(make("span", "", `log p ${pair.log_prob.toFixed(2)}`));
  head.append(scores);
  const said = make("p", "said");
  said.append(...(pair.caption ? marked(pair.caption, gramsOf(pair.references)) : [make("span", "quiet", "(nothing)")]));
  const known = make("div", "facts");
  for (const name of facts) {
    const right = pair.facts[name];
    if (right !== undefined && right !== null) known.append(make("span", right ? "yes" : "no", (right ? "✓ " : "✗ ") + name));
  }
  text.append(head, said, known, references(pair));
  element.append(pictures, text);
  return element;
}

function references(pair) {
  const list = make("ul");
  const grams = gramsOf([pair.caption]);
  const add = (texts) => texts.forEach((text) => {
    const item = make("li");
    item.append(...marked(text, grams));
    list.append(item);
  });
  add(pair.references.slice(0, fewReferences()));
  const rest = pair.references.slice(fewReferences());
  if (rest.length) {
    const more = make("button", "more", `${rest.length} more`);
    more.type = "button";
    more.addEventListener("click", () => { more.remove(); add(rest); });
    list.append(more);
  }
  return list;
}

// ---- which pairs, in which order -----------------------------------------------------------------------

function fill() {
  const counts = new Map();
  for (const pair of pairs) counts.set(pair.type, (counts.get(pair.type) ?? 0) + 1);
  option($("type"), "", `all (${pairs.length})`);
  [...counts].filter(([kind]) => kind !== null).sort((a, b) => b[1] - a[1])
    .forEach(([kind, count]) => option($("type"), "=" + kind, `${kind} (${count})`));
  option($("fact"), "", "all");
  facts.forEach((name, index) => {
    option($("fact"), `${index} false`, `${name} wrong`);
    option($("fact"), `${index} true`, `${name} right`);
  });
  $("fact").parentElement.hidden = !facts.length;
  option($("order"), "id", "as in the data");
  metrics.forEach((name, index) => {
    option($("order"), `${index} 1`, `${name}, worst first`);
    option($("order"), `${index} -1`, `${name}, best first`);
  });
  if (pairs.some((pair) => pair.change_score !== null)) {
    option($("order"), "change -1", "change score, highest first");
    option($("order"), "change 1", "change score, lowest first");
  }
  option($("order"), "sure 1", "least sure first");
  option($("order"), "sure -1", "surest first");
  $("boxes-label").hidden = !pairs.some((pair) => pair.boxes.some((side) => side.length));
  if (pairs.length === data.max_pairs) $("most").textContent = `This page holds the first ${data.max_pairs} pairs; order, filters and CSV are of these.`;
}

function found() {
  const kind = $("type").value;
  const [fact, right] = $("fact").value.split(" ");
  const words = wordsAsked();
  const chosen = pairs.filter((pair) => {
    if (kind && "=" + pair.type !== kind) return false;
    if (fact && pair.facts[facts[fact]] !== (right === "true")) return false;
    const text = [pair.id, pair.caption, ...pair.references].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const [key, sign] = $("order").value.split(" ");
  if (key === "id") return chosen;
  const value = { sure: (pair) => pair.log_prob, change: (pair) => pair.change_score }[key];
  return sorted(chosen, value ?? ((pair) => pair.scores[metrics[key]] ?? null), sign);
}

// ---- the pairs as a table ------------------------------------------------------------------------------

// a spreadsheet would run text that begins like a formula
function cell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const head = ["id", "change_type", "caption", "references", "log_prob", "change_score", ...metrics, ...facts];
  const rows = state.found.map((pair) => [
    pair.id, pair.type, pair.caption, pair.references.join(" | "), pair.log_prob, pair.change_score,
    ...metrics.map((name) => pair.scores[name]), ...facts.map((name) => pair.facts[name]),
  ]);
  return [head, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function saveCsv() {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", csv()], { type: "text/csv" }));
  link.download = "pairs.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- one pair, large -----------------------------------------------------------------------------------

// full-size images are separate files next to the report; if they are missing, the reduced ones are shown
function fullSize(element, pair, side) {
  const file = pair.files?.[side];
  const reduced = () => { element.onerror = null; picture(element, pair, side); };
  element.onerror = reduced;
  if (file) { element.pair = pair; element.src = file; } else reduced();
}

function enlarge(index) {
  const pair = state.found[index];
  if (!pair?.pictures) return;
  state.large = index;
  $("stage").style.setProperty("--ratio", pair.size[0] / pair.size[1]);
  $("stage").classList.toggle("tiny", pair.size[0] < 200);
  [$("large-before"), $("large-after")].forEach((element, side) => fullSize(element, pair, side));
  $("large-boxes-before").replaceChildren(...boxesOf(pair, 0));
  $("large-boxes-after").replaceChildren(...boxesOf(pair, 1));
  $("large").classList.toggle("hide-boxes", !$("boxes").checked);
  $("large-id").textContent = pair.id;
  $("large-place").textContent = `${index + 1} of ${state.found.length}`;
  $("large-previous").disabled = index === 0;
  $("large-next").disabled = index === state.found.length - 1;
  $("large-caption").textContent = pair.caption || "(nothing)";
  $("large-reference").textContent = pair.references.length ? `reference: ${pair.references[0]}` : "";
  $("large-files").replaceChildren(...(pair.files ?? []).map((file, side) => {
    const link = make("a", "", `${side ? "after" : "before"} alone, ${pair.size.join(" × ")}`);
    link.href = file;
    link.target = "_blank";
    return link;
  }));
  if (!$("large").open) { $("large").showModal(); $("wipe").focus(); }
  writeAddress({ pair: pair.id, large: 1 });
}

function wipe(to) {
  $("wipe").value = to;
  $("stage").style.setProperty("--edge", `${$("wipe").value}%`);
}

function wipeTo(event) {
  const { left, width } = $("stage").getBoundingClientRect();
  wipe((100 * (event.clientX - left)) / width);
}

$("wipe").addEventListener("input", () => wipe($("wipe").value));
$("stage").addEventListener("pointerdown", (event) => { event.preventDefault(); $("stage").setPointerCapture(event.pointerId); wipeTo(event); });
$("stage").addEventListener("pointermove", (event) => { if (event.buttons) wipeTo(event); });
$("large").addEventListener("click", (event) => { if (event.target === $("large")) $("large").close(); });
$("large").addEventListener("close", () => {
  const place = Math.floor(state.large / PER_PAGE);
  if (place !== state.page) show(place);
  writeAddress();
  $("pairs").children[state.large % PER_PAGE]?.querySelector(".frame")?.focus();
});
$("large-close").addEventListener("click", () => $("large").close());
$("large-previous").addEventListener("click", () => enlarge(state.large - 1));
$("large-next").addEventListener("click", () => enlarge(state.large + 1));
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if ($("large").open) {
    const to = { ArrowUp: +$("wipe").value + 2, ArrowDown: $("wipe").value - 2, Home: 0, End: 100 }[event.key];
    if (!by && to === undefined) return;
    event.preventDefault(); // the slider also reacts to these keys
    if (by) enlarge(state.large + by);
    else wipe(to);
  } else if (by && !event.target.matches("input, select")) turn(by);
});
$("csv").addEventListener("click", saveCsv);
fill();
begin();
