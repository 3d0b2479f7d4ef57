"use strict";
const PER_PAGE = 20;
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const state = { page: 0, found: data.pairs };

// text goes in through textContent alone: captions are never markup
function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function option(select, value, text) {
  const element = make("option", "", text);
  element.value = value;
  select.append(element);
}

// article draws one pair; each page has its own
function show(page) {
  const last = Math.max(0, Math.ceil(state.found.length / PER_PAGE) - 1);
  state.page = Math.min(Math.max(page, 0), last);
  const from = state.page * PER_PAGE;
  const shown = state.found.slice(from, from + PER_PAGE);
  $("pairs").replaceChildren(...shown.map(article));
  if (!shown.length) $("pairs").append(make("p", "nothing", data.pairs.length ? "No pair is like this." : "There are no pairs."));
  $("place").textContent = shown.length ? `${from + 1} to ${from + shown.length} of ${state.found.length}` : "0";
  $("previous").disabled = state.page === 0;
  $("next").disabled = state.page === last;
}

