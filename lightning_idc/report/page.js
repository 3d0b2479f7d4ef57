const { pairs, metrics, facts } = data;
const FEW_REFERENCES = 3;

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

// every word is marked with the length of the longest shared run of up to four words that it stands in
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
  [element.width, element.height] = pair.size; // keeps the page from jumping
  element.alt = `${side ? "after" : "before"}, ${pair.id}`;
  element.src = pair.images[side];
  return element;
}

function figure(pair, kind) {
  const element = make("figure", kind);
  const frame = make("div", "frame" + (pair.size[0] < 32 ? " tiny" : ""));
  const stack = make("div", "stack");
  const sides = kind === "before" ? [0] : kind === "after" ? [1] : [0, 1];
  stack.append(...sides.map((side) => image(pair, side)));
  frame.append(stack);
  if (sides.length === 1) {
    for (const [x1, y1, x2, y2] of pair.boxes[sides[0]] ?? []) {
      const box = make("div", "box");
      const percent = (value) => `${100 * value}%`;
      Object.assign(box.style, { left: percent(x1), top: percent(y1), width: percent(x2 - x1), height: percent(y2 - y1) });
      frame.append(box);
    }
  }
  element.append(frame, make("figcaption", "", { blink: "before ⇄ after", difference: "difference ×2" }[kind] ?? kind));
  element.addEventListener("click", () => enlarge(state.found.indexOf(pair)));
  return element;
}

const VIEWS = { two: ["before", "after"], three: ["before", "after", "difference"], blink: ["blink"] };

function article(pair) {
  const element = make("article");
  const pictures = make("div", "pictures");
  if (pair.images) pictures.append(...VIEWS[$("view").value].map((kind) => figure(pair, kind)));
  const text = make("div");
  const head = make("div", "head");
  head.append(make("span", "id", pair.id));
  if (pair.type !== null) head.append(make("span", "kind", pair.type));
  const scores = make("span", "scores");
  for (const name of metrics) {
    if (typeof pair.scores[name] !== "number") continue;
    const main = name === metrics[0];
    const score = make("span", "", `${name} `);
    score.append(make(main ? "b" : "span", "", pair.scores[name].toFixed(main ? 0 : 1)));
    scores.append(score);
  }
  if (pair.log_prob !== null) {
    const sure = make("span", "", `log p ${pair.log_prob.toFixed(2)}`);
    sure.title = "mean log-probability of a token: how sure the captioner was";
    scores.append(sure);
  }
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
  add(pair.references.slice(0, FEW_REFERENCES));
  const rest = pair.references.slice(FEW_REFERENCES);
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
  option($("order"), "sure 1", "least sure first");
  option($("order"), "sure -1", "surest first");
  $("boxes-label").hidden = !pairs.some((pair) => pair.boxes.some((side) => side.length));
}

function find() {
  const kind = $("type").value;
  const [fact, right] = $("fact").value.split(" ");
  const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  state.found = pairs.filter((pair) => {
    if (kind && "=" + pair.type !== kind) return false;
    if (fact && pair.facts[facts[fact]] !== (right === "true")) return false;
    const text = [pair.id, pair.caption, ...pair.references].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const [key, sign] = $("order").value.split(" ");
  if (key !== "id") {
    const value = (pair) => (key === "sure" ? pair.log_prob : pair.scores[metrics[key]]) ?? null;
    // pairs without a value come last either way
    state.found.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
  }
  show(0);
}

function turn(by) {
  show(state.page + by);
  $("bar").scrollIntoView();
}

// ---- one pair, large -----------------------------------------------------------------------------------

function enlarge(index) {
  const pair = state.found[index];
  if (!pair?.images) return;
  state.large = index;
  $("large-before").src = pair.images[0];
  $("large-after").src = pair.images[1];
  $("large-caption").textContent = pair.caption || "(nothing)";
  $("large-reference").textContent = pair.references[0] ?? "";
  if (!$("large").open) $("large").showModal();
}

$("wipe").addEventListener("input", () => $("large").style.setProperty("--shown", `${$("wipe").value}%`));
// after a drag the arrow keys are for turning pages again; who came by keyboard keeps the slider
$("wipe").addEventListener("pointerup", () => $("wipe").blur());
$("large").addEventListener("click", (event) => { if (event.target === $("large")) $("large").close(); });
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.target.matches("input, select")) return;
  if ($("large").open) enlarge(state.large + by);
  else turn(by);
});
for (const id of ["type", "fact", "order"]) $(id).addEventListener("change", find);
$("find").addEventListener("input", find);
$("view").addEventListener("change", () => show(state.page));
$("boxes").addEventListener("change", () => $("pairs").classList.toggle("hide-boxes", !$("boxes").checked));
$("bar").addEventListener("submit", (event) => event.preventDefault());
$("previous").addEventListener("click", () => turn(-1));
$("next").addEventListener("click", () => turn(1));
fill();
$("bar").hidden = false;
find();
