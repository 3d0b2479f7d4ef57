"use strict";
const PER_PAGE = 20;
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const state = { page: 0, found: data.pairs };

// texts are set by textContent only, so that a caption is never parsed as HTML
function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// the images of a pair may be in a part of the file that the browser has not read yet
data.pairs.forEach((pair, place) => { pair.place = place; });
function picture(element, pair, index) {
  element.pair = pair;
  const stored = $(`pictures-${pair.place}`);
  if (stored) { element.src = JSON.parse(stored.textContent)[index]; return; }
  element.removeAttribute("src");
  document.addEventListener("DOMContentLoaded", () => { if (element.pair === pair) picture(element, pair, index); }, { once: true });
}

function option(select, value, text) {
  const element = make("option", "", text);
  element.value = value;
  select.append(element);
}

// positions an element at a box, whose coordinates are fractions of width and height
function place(element, [x1, y1, x2, y2]) {
  const percent = (value) => `${100 * value}%`;
  Object.assign(element.style, { left: percent(x1), top: percent(y1), width: percent(x2 - x1), height: percent(y2 - y1) });
}

// shows a page of pairs; `article`, which each document defines, makes the element of a pair
function show(page) {
  const last = Math.max(0, Math.ceil(state.found.length / PER_PAGE) - 1);
  state.page = Math.min(Math.max(page, 0), last);
  const from = state.page * PER_PAGE;
  const shown = state.found.slice(from, from + PER_PAGE);
  $("pairs").dataset.view = $("view")?.value ?? "";
  $("pairs").replaceChildren(...shown.map(article));
  if (!shown.length) $("pairs").append(make("p", "nothing", data.pairs.length ? "No pair matches." : "There are no pairs."));
  $("place").textContent = shown.length ? `${from + 1} to ${from + shown.length} of ${state.found.length}` : "0";
  $("previous").disabled = state.page === 0;
  $("next").disabled = state.page === last;
}

function turn(by) {
  show(state.page + by);
  writeAddress();
  $("bar").scrollIntoView();
}

// ---- the address ---------------------------------------------------------------------------------------
// The fragment of the address stores the selection, so that a view can be shared: #type=%3Dmove&find=cube&page=2&pair=p17

const controls = () => [...$("bar").querySelectorAll("select, input")];
const valueOf = (control) => (control.type === "checkbox" ? String(control.checked) : control.value);
const initial = {};

function address(more = {}) {
  const chosen = new URLSearchParams();
  for (const control of controls()) if (valueOf(control) !== initial[control.id]) chosen.set(control.id, valueOf(control));
  if (state.page) chosen.set("page", state.page + 1);
  for (const [name, value] of Object.entries(more)) chosen.set(name, value);
  return "#" + chosen;
}

function writeAddress(more) {
  history.replaceState(null, "", address(more));
}

function readAddress() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const control of controls()) {
    const value = chosen.get(control.id) ?? initial[control.id];
    if (control.type === "checkbox") control.checked = value === "true";
    else control.value = value;
    if (control.tagName === "SELECT" && control.selectedIndex < 0) control.value = initial[control.id]; // no such entry
  }
  state.found = found();
  $("pairs").classList.toggle("hide-boxes", !$("boxes").checked);
  const place = state.found.findIndex((pair) => pair.id === chosen.get("pair"));
  show(place < 0 ? (Number.parseInt(chosen.get("page") ?? "1", 10) || 1) - 1 : Math.floor(place / PER_PAGE));
  if (place < 0) return;
  const drawn = $("pairs").children[place % PER_PAGE];
  drawn.classList.add("linked");
  drawn.scrollIntoView({ block: "center" });
  if (chosen.has("large")) enlarge(place);
}

// called by each document once its controls have their options; its found() returns the selected pairs, in order
function begin() {
  for (const control of controls()) {
    initial[control.id] = valueOf(control);
    control.addEventListener(control.type === "search" ? "input" : "change", () => {
      state.found = found();
      $("pairs").classList.toggle("hide-boxes", !$("boxes").checked);
      show(0);
      writeAddress();
    });
  }
  $("bar").addEventListener("submit", (event) => event.preventDefault());
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  window.addEventListener("hashchange", readAddress);
  $("bar").hidden = false;
  readAddress();
}

const wordsAsked = () => $("find").value.toLowerCase().split(/\s+/).filter(Boolean);

// pairs without a value come last in both directions
function sorted(pairs, value, sign) {
  return pairs.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
}

