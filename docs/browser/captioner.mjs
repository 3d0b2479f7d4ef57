// A captioner of `lightning-idc export onnx` in the browser: words, change score and place, computed as Python does.

const CELLS = 8, KEPT = 0.5, SHOWN = 32, BLUR = 13;  // of lightning_idc/models/where.py
const CHANGED = 0.5, BATCH = 32;

/** Pixels of an image file, `{width, height, data}` with data channel by channel. */
export async function read(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(bitmap, 0, 0);
  const pixels = pen.getImageData(0, 0, width, height).data, data = new Uint8Array(3 * width * height);
  for (let i = 0; i < width * height; i++) for (let c = 0; c < 3; c++) data[c * width * height + i] = pixels[4 * i + c];
  return { width, height, data };
}

export class Captioner {
  constructor(ort, about, encoder, step) { Object.assign(this, { ort, about, encoder, step }); }

  /** Opens what an export left at an address that ends in a slash. */
  static async open(ort, place) {
    const about = await (await fetch(`${place}captioner.json`)).json();
    const graphs = [];
    for (const name of ["encoder", "step"]) graphs.push(await ort.InferenceSession.create(`${place}${name}.onnx`));
    return new Captioner(ort, about, ...graphs);
  }

  /** What `lightning-idc describe --json` says of two images of `read`, and the ids of the words. */
  async describe(before, after, where = true) {
    const [height, width] = this.about.size;
    const pair = [before, after].map((image) => resized(image, width, height));
    const memory = await this.encode([pair]), { ids, log_prob } = await this.greedy(memory);
    const change_score = await this.changeScore(memory);
    const changed = change_score === null ? null : change_score >= CHANGED;
    const sides = [before.width, before.height];
    const found = !where ? null : changed === false ? { map: [[0]], boxes: [] } : await this.locate(pair, ids);
    const boxes = found ? found.boxes.map((box) => box.map((value, i) => Math.round(value * sides[i % 2]))) : [];
    const notes = [`This captioner knows ${this.about.domain} only.`];
    if (before.width * after.height !== before.height * after.width) notes.push("The two images differ in shape.");
    return { caption: this.text(ids), ids, log_prob, change_score, changed, boxes, map: found && found.map, size: sides, notes };
  }

  text(ids) { return ids.filter((id) => !this.about.ends.includes(id)).map((id) => this.about.words[id]).join(" "); }

  async encode(pairs) {
    const [height, width] = this.about.size, side = 3 * height * width, pixels = new Uint8Array(2 * pairs.length * side);
    pairs.forEach((pair, i) => pair.forEach((image, k) => pixels.set(image.data, (2 * i + k) * side)));
    const images = new this.ort.Tensor("uint8", pixels, [pairs.length, 2, 3, height, width]);
    return (await this.encoder.run({ images })).memory;
  }

  /** Log-probabilities of the next token of each row, and the longer past. */
  async next(tokens, memory, past) {
    const given = new this.ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [tokens.length]);
    const found = await this.step.run({ tokens: given, memory, past: past ?? this.nothing(memory) });
    return [found.log_probs.data, found.past_after];
  }

  nothing(memory) {
    const dims = [...memory.dims];
    dims[4] = 0;
    return new this.ort.Tensor("float32", new Float32Array(0), dims);
  }

  /** The likeliest words, one after another, for one pair. */
  async greedy(memory) {
    const { begin, ends, never_said, max_length } = this.about, ids = [];
    let token = begin, past = null, scores, sum = 0;
    while (ids.length < max_length) {
      [scores, past] = await this.next([token], memory, past);
      for (const id of never_said) scores[id] = -Infinity;
      token = scores.indexOf(Math.max(...scores));
      ids.push(token);
      sum += scores[token];
      if (ends.includes(token)) break;
    }
    return { ids, log_prob: sum / ids.length };
  }

  /** Log-probability of one sentence, begin and end included, per row of the memory. */
  async score(memory, sentences) {
    const sums = sentences.map(() => 0), longest = Math.max(...sentences.map((ids) => ids.length));
    let past = null, scores;
    for (let t = 0; t + 1 < longest; t++) {
      [scores, past] = await this.next(sentences.map((ids) => ids[t] ?? 0), memory, past);
      const words = scores.length / sentences.length;
      sentences.forEach((ids, row) => { if (t + 1 < ids.length) sums[row] += scores[row * words + ids[t + 1]]; });
    }
    return sums;
  }

  /** 1 minus the probability of the sentences that mean "nothing changed". */
  async changeScore(memory) {
    const sentences = this.about.no_change;
    if (!sentences.length) return null;
    const data = new Float32Array(sentences.length * memory.data.length);
    sentences.forEach((_, row) => data.set(memory.data, row * memory.data.length));
    const rows = new this.ort.Tensor("float32", data, [sentences.length, ...memory.dims.slice(1)]);
    const mass = (await this.score(rows, sentences)).reduce((sum, value) => sum + Math.exp(value), 0);
    return Math.min(1, Math.max(0, 1 - mass));
  }

  /** Where: a cell matters if the caption loses its reason once both images agree there. */
  async locate(pair, ids) {
    const said = [this.about.begin, ...ids], [height, width] = this.about.size;
    if (!this.about.ends.includes(said.at(-1))) said.push(this.about.ends[0]);
    const [tops, lefts] = [height, width].map((n) => Array.from({ length: CELLS + 1 }, (_, i) => Math.round((i * n) / CELLS)));
    const edited = [pair], cells = [];
    for (let row = 0; row < CELLS; row++) {
      for (let column = 0; column < CELLS; column++) {
        const place = [tops[row], tops[row + 1], lefts[column], lefts[column + 1]];
        const swapped = [patched(pair[0], pair[1], place), patched(pair[1], pair[0], place)];
        if (!swapped[0]) continue;
        cells.push([row, column]);
        edited.push([swapped[0], pair[1]], [pair[0], swapped[1]]);
      }
    }
    const scores = [];
    for (let at = 0; at < edited.length; at += BATCH) {
      const batch = edited.slice(at, at + BATCH);
      scores.push(...await this.score(await this.encode(batch), batch.map(() => said)));
    }
    const grid = Array.from({ length: CELLS }, () => new Array(CELLS).fill(0));
    cells.forEach(([row, column], i) => {
      const lost = (k) => Math.max(0, scores[0] - scores[2 * i + k]);
      grid[row][column] = lost(1) + lost(2);
    });
    return placed(grid, pair);
  }
}

/** An image with the pixels of another one in a place; null where these are its own. */
function patched(image, other, [top, bottom, left, right]) {
  const data = image.data.slice(), area = image.width * image.height;
  let differs = false;
  for (let c = 0; c < 3; c++) {
    for (let y = top; y < bottom; y++) {
      for (let x = left; x < right; x++) {
        const i = c * area + y * image.width + x;
        differs ||= data[i] !== other.data[i];
        data[i] = other.data[i];
      }
    }
  }
  return differs ? { ...image, data } : null;
}

/** Where exactly: the square root of how much cells matter, times how much the pixels around a place differ. */
function placed(grid, [first, second]) {
  const { width, height } = first, area = width * height, difference = new Float64Array(area);
  for (let i = 0; i < 3 * area; i++) {
    difference[i % area] = Math.max(difference[i % area], Math.abs(first.data[i] - second.data[i]));
  }
  const [tall, wide] = [height, width].map((side) => Math.floor(side / BLUR) | 1);
  const fine = Array.from({ length: height }, (_, y) => Array.from({ length: width }, (_, x) => {
    let sum = 0;
    for (let v = Math.max(0, y - (tall >> 1)); v <= Math.min(height - 1, y + (tall >> 1)); v++) {
      for (let u = Math.max(0, x - (wide >> 1)); u <= Math.min(width - 1, x + (wide >> 1)); u++) sum += difference[v * width + u];
    }
    return Math.sqrt(between(grid, (y + 0.5) / height, (x + 0.5) / width)) * sum / (tall * wide);
  }));
  const most = Math.max(...fine.map((row) => Math.max(...row)));
  if (!most) return { map: [[0]], boxes: [] };
  const shares = fine.map((row) => row.map((value) => value / most));
  return { map: shrunk(shares, Math.min(height, SHOWN), Math.min(width, SHOWN)), boxes: boxesOf(shares) };
}

/** A value of a grid at a share of its height and width, between the centres of its cells. */
function between(grid, down, along) {
  const at = (share, count) => {
    const place = Math.max(0, share * count - 0.5), low = Math.min(Math.floor(place), count - 1);
    return [low, Math.min(low + 1, count - 1), place - low];
  };
  const [top, bottom, v] = at(down, grid.length), [left, right, u] = at(along, grid[0].length);
  const row = (values) => values[left] * (1 - u) + values[right] * u;
  return row(grid[top]) * (1 - v) + row(grid[bottom]) * v;
}

/** The greatest value of each part of a map. */
function shrunk(map, rows, columns) {
  const parts = (count, wanted) => Array.from({ length: wanted },
    (_, i) => [Math.floor((i * count) / wanted), Math.ceil(((i + 1) * count) / wanted)]);
  return parts(map.length, rows).map(([top, bottom]) => parts(map[0].length, columns).map(([left, right]) =>
    Math.max(...map.slice(top, bottom).map((row) => Math.max(...row.slice(left, right))))));
}

/** Boxes around neighbouring places that matter, by their greatest value, as shares of width and height. */
function boxesOf(map) {
  const rows = map.length, columns = map[0].length, left = new Set(), found = [];
  map.forEach((row, y) => row.forEach((value, x) => { if (value >= KEPT) left.add(y * columns + x); }));
  while (left.size) {
    const front = [left.values().next().value], box = [columns, rows, 0, 0];
    let most = 0;
    left.delete(front[0]);
    while (front.length) {
      const place = front.pop(), y = Math.floor(place / columns), x = place % columns;
      most = Math.max(most, map[y][x]);
      box[0] = Math.min(box[0], x); box[1] = Math.min(box[1], y);
      box[2] = Math.max(box[2], x + 1); box[3] = Math.max(box[3], y + 1);
      for (let v = Math.max(0, y - 1); v <= Math.min(rows - 1, y + 1); v++) {
        for (let u = Math.max(0, x - 1); u <= Math.min(columns - 1, x + 1); u++) {
          if (left.delete(v * columns + u)) front.push(v * columns + u);
        }
      }
    }
    found.push([most, box.map((value, i) => value / (i % 2 ? rows : columns))]);
  }
  return found.sort((a, b) => b[0] - a[0] || a[1][0] - b[1][0] || a[1][1] - b[1][1]).map(([, box]) => box);
}

/** An image at another size, averaged as torch's antialiased bilinear interpolation does. */
function resized(image, width, height) {
  if (image.width === width && image.height === height) return image;
  const along = weights(image.width, width), down = weights(image.height, height), data = new Uint8Array(3 * width * height);
  for (let c = 0; c < 3; c++) {
    const from = c * image.width * image.height;
    const rows = Array.from({ length: image.height }, (_, y) => along.map(({ first, shares }) =>
      shares.reduce((sum, share, i) => sum + share * image.data[from + y * image.width + first + i], 0)));
    down.forEach(({ first, shares }, y) => {
      for (let x = 0; x < width; x++) {
        const value = shares.reduce((sum, share, i) => sum + share * rows[first + i][x], 0);
        data[(c * height + y) * width + x] = Math.min(255, Math.max(0, toEven(value)));
      }
    });
  }
  return { width, height, data };
}

/** For each of the wanted pixels the first one that it is made of, and the shares of those from there on. */
function weights(length, wanted) {
  const scale = length / wanted, reach = Math.max(scale, 1);
  return Array.from({ length: wanted }, (_, i) => {
    const center = scale * (i + 0.5), first = Math.max(Math.trunc(center - reach + 0.5), 0);
    const last = Math.min(Math.trunc(center + reach + 0.5), length), shares = [];
    for (let j = first; j < last; j++) shares.push(Math.max(0, 1 - Math.abs((j - center + 0.5) / reach)));
    const sum = shares.reduce((a, b) => a + b, 0);
    return { first, shares: shares.map((share) => share / sum) };
  });
}

function toEven(value) {
  const up = Math.round(value);
  return up - value === 0.5 && up % 2 ? up - 1 : up;
}
