// Shows a conversation as cards, one for each turn; a tool's result is under its call, and long texts are folded.

const LONG = 1600; // a text with more characters is folded; ENDS are the characters of its visible ends
const ENDS = [700, 500];
const LONG_THOUGHT = 400;
const ENDS_OF_THOUGHT = [160, 160];
const SECONDS = ["latency", "latency_s", "seconds", "duration", "duration_s"];
const TOKENS = ["tokens", "num_tokens", "completion_tokens"];

const isConversation = (value) => Array.isArray(value) && value.length > 0 && value.every((message) => message && typeof message === "object" && "role" in message);

/** The turns of a conversation: {message, calls: [{call, result}]}; a result without a call is a turn of its own. */
function turnsOf(messages) {
  const turns = [];
  const open = [];
  for (const message of messages) {
    const { role, tool_call_id: id, name } = message;
    const answers = open.filter(({ result, call }) => !result && (id != null ? call.id === id : name == null || nameOf(call) === name));
    if (role === "tool" && answers.length) {
      answers[0].result = message;
      continue;
    }
    const { tool_calls: list } = message;
    const calls = (Array.isArray(list) ? list : [list]).filter((call) => call != null).map((call) => ({ call, result: null }));
    open.push(...calls.filter(({ call }) => typeof call === "object"));
    turns.push({ message, calls });
  }
  return turns;
}

const nameOf = (call) => call?.function?.name ?? call?.name;

function conversation(name, messages) {
  const turns = turnsOf(messages);
  const cards = turns.map(turnCard);
  const index = el("div", { class: "turns", role: "navigation", "aria-label": "Turns" }, turns.map((turn, i) =>
    el("button", { class: "btn", type: "button", textContent: `${i + 1} ${turnName(turn)}`, onclick: () => cards[i].scrollIntoView({ block: "nearest" }) })));
  return el("div", { class: "field", data: { column: name } },
    el("div", { class: "label" }, el("span", { textContent: visible(name) }), el("span", { textContent: plural(turns.length, "turn") })),
    turns.length > 3 ? index : null,
    cards);
}

/** The role that speaks, and the tools that it calls. */
function turnName({ message, calls }) {
  const tools = calls.map(({ call }) => nameOf(call)).filter(Boolean);
  return visible([message.role, tools.length ? `\u2192 ${tools.join(", ")}` : ""].join(" ").trim());
}

function turnCard({ message, calls }, index) {
  const { role, content, tool_calls: _, reasoning_content: thought, ...more } = message;
  const seconds = SECONDS.find((key) => typeof more[key] === "number");
  const tokens = TOKENS.find((key) => typeof more[key] === "number");
  const rest = Object.entries(more).filter(([key, value]) => value != null && key !== seconds && key !== tokens && key !== "tool_call_id");
  const fact = (text) => el("span", { textContent: text });
  const kind = role === "assistant" ? "completion" : role === "user" || role === "system" ? "prompt" : "tool";
  return el("div", { class: `field turn ${kind}`, data: { turn: index + 1 } },
    el("div", { class: "label" },
      el("b", { textContent: visible(role) }),
      seconds ? fact(`${number(Number(more[seconds].toPrecision(3)))} s`) : null,
      tokens ? fact(plural(more[tokens], "token")) : null,
      rest.map(([key, value]) => fact(`${visible(key)}: ${visible(typeof value === "string" ? value : JSON.stringify(value))}`))),
    thought ? folded(asText(thought), LONG_THOUGHT, ENDS_OF_THOUGHT, "txt thought") : null,
    spoken(content),
    calls.map(callCard));
}


/** The texts of a message as elements; thoughts are folded apart from the answer. */
function spoken(content) {
  const parts = Array.isArray(content) ? content.map((part) => part?.text ?? JSON.stringify(part)) : content == null ? [] : [asText(content)];
  return parts.filter(Boolean).flatMap((text) => {
    const [, thought, answer] = text.match(/^(\s*<think>[\s\S]*?<\/think>)([\s\S]*)$/) ?? [null, "", text];
    return [thought && folded(thought, LONG_THOUGHT, ENDS_OF_THOUGHT, "txt thought"), answer.trim() && folded(answer, LONG, ENDS, "txt")];
  }).filter(Boolean);
}

/** A call of a tool with a line for each argument, and its result. */
function callCard({ call, result }) {
  const { arguments: values } = call?.function ?? call ?? {};
  const name = nameOf(call);
  return el("div", { class: "call" },
    el("div", { class: "label" }, el("b", { textContent: name == null ? "call" : `\u2192 ${visible(name)}` })),
    folded(name == null ? asText(call) : argumentsText(values), LONG, ENDS, "txt arguments"),
    result ? [el("div", { class: "label" }, el("span", { textContent: "result" })), ...spoken(result.content).map((node) => (node.classList.add("result"), node))] : null);
}

/** Arguments as lines of `name: value`; texts keep their line breaks. */
function argumentsText(text) {
  const values = parsedArguments(text ?? {});
  if (typeof values === "string") return values;
  if (values === null || typeof values !== "object" || Array.isArray(values)) return asText(values);
  return Object.entries(values).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("\n");
}

function parsedArguments(text) {
  if (typeof text !== "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A message as one text: its content, a line for each call of a tool, and its other keys. */
function messageText({ role, content, tool_calls: list, ...more }) {
  const parts = Array.isArray(content) ? content.map((part) => part?.text ?? JSON.stringify(part)) : [content == null ? "" : asText(content)];
  for (const call of (Array.isArray(list) ? list : [list]).filter((call) => call != null)) {
    const { arguments: values } = call?.function ?? call;
    const name = nameOf(call);
    parts.push(name == null ? JSON.stringify(call) : `\u2192 ${name}(${typeof values === "string" ? values : JSON.stringify(values ?? {})})`);
  }
  parts.push(...Object.entries(more).flatMap(([key, value]) => (value == null ? [] : [`${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`])));
  return parts.filter(Boolean).join("\n");
}

/** An element with a text; a long text shows only its ends until the reader opens it, except during a search. */
function folded(text, most, [head, tail], kind) {
  const node = el("div", { class: kind, dir: "auto" });
  if (text.length <= most || state.query) return appendText(node, text, state.query);
  const [from, to] = [boundary(text, head), boundary(text, text.length - tail)];
  appendText(node, text.slice(0, from));
  node.append(el("details", { class: "fold" },
    el("summary", { data: { label: `${plural(to - from, "character")} more` } }),
    appendText(el("span"), text.slice(from, to))));
  return appendText(node, text.slice(to));
}

const NEAR = 60; // characters

/** The next beginning of a line, or else of a word, within NEAR characters; else the position, but never inside a character. */
function boundary(text, at) {
  const ahead = text.slice(at, at + NEAR);
  const gap = [/\n/, /\s/].map((space) => ahead.search(space)).find((distance) => distance >= 0);
  if (gap != null) return at + gap + 1;
  return /[\udc00-\udfff]/.test(text[at]) ? at + 1 : at;
}
