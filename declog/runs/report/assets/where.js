// Evaluates conditions over samples, in a small part of the language of `where`.
//
// Names, numbers, texts, `true`, `false`; comparisons, also chained; `in`, `not in`, `contains(name, 'text')`; `and`, `or`, `not`.
// As everywhere in declog, a comparison with a missing value is false. The cases in tests/data/where.json hold in Python, too.

const TOKEN = /\s*(?:(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|([A-Za-z_]\w*)|(<=|>=|==|!=|<|>|\(|\)|\[|\]|,|-))/iy;
const WORDS_OF_LOGIC = new Set(["and", "or", "not", "in", "true", "false", "True", "False", "contains"]);
const COMPARE = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "==": (a, b) => a === b, "!=": (a, b) => a !== b };

/** The name of a column in a condition: `reward/correct` is `reward_correct`. */
const asked = (column) => column.replace(/\W/g, "_");

/** Compile a condition over a row's values; `names` are the columns that it reads. Throws an Error with the position of a mistake. */
function condition(text, columns) {
  const tokens = tokensOf(text);
  const columnOf = new Map(columns.map((column) => [asked(column), column]));
  const names = new Set();
  let at = 0;
  const fault = (what) => Error(`${what}${at < tokens.length ? ` at ${tokens[at].position + 1}` : " at the end"}`);
  const is = (word) => tokens[at]?.text === word && tokens[at].kind !== "text";
  const take = (word) => {
    if (!is(word)) throw fault(`\`${word}\` is missing`);
    at++;
  };

  function either() {
    const parts = [both()];
    while (is("or")) at++, parts.push(both());
    return parts.length > 1 ? (row) => parts.some((part) => truth(part(row))) : parts[0];
  }

  function both() {
    const parts = [negated()];
    while (is("and")) at++, parts.push(negated());
    return parts.length > 1 ? (row) => parts.every((part) => truth(part(row))) : parts[0];
  }

  function negated() {
    if (!is("not")) return compared();
    at++;
    const part = negated();
    return (row) => !truth(part(row));
  }

  function compared() {
    const operands = [operand()];
    const tests = [];
    for (;;) {
      const negates = is("not") && tokens[at + 1]?.text === "in";
      if (negates || is("in")) {
        at += negates ? 2 : 1;
        const [value, values] = [operands.at(-1), list()];
        return (row) => !missing(value(row)) && values.includes(value(row)) !== negates;
      }
      if (!(tokens[at]?.kind === "sign" && tokens[at].text in COMPARE)) break;
      tests.push(COMPARE[tokens[at++].text]);
      operands.push(operand());
    }
    if (!tests.length) return operands[0];
    return (row) => {
      const values = operands.map((operand) => operand(row));
      return tests.every((test, i) => !missing(values[i]) && !missing(values[i + 1]) && test(values[i], values[i + 1]));
    };
  }

  function list() {
    const end = is("[") ? "]" : ")";
    take(is("[") ? "[" : "(");
    const values = [];
    while (!is(end)) {
      values.push(operand()({}));
      if (!is(end)) take(",");
    }
    take(end);
    return values;
  }

  function operand() {
    const token = tokens[at];
    if (!token) throw fault("something is missing");
    at++;
    if (token.kind === "number") return () => token.value;
    if (token.kind === "text") return () => token.value;
    if (token.text === "-" && tokens[at]?.kind === "number") {
      const { value } = tokens[at++];
      return () => -value;
    }
    if (token.text === "(") {
      const inner = either();
      take(")");
      return inner;
    }
    if (/^(true|false)$/i.test(token.text)) return () => token.text.toLowerCase() === "true";
    if (token.text === "contains") return containing();
    at--;
    if (token.kind === "name" && !WORDS_OF_LOGIC.has(token.text)) return column();
    throw fault(`\`${token.text}\` is not understood`);
  }

  function containing() {
    take("(");
    const value = operand();
    take(",");
    const needle = operand()({});
    take(")");
    return (row) => typeof value(row) === "string" && value(row).includes(needle);
  }

  function column() {
    const { text: name } = tokens[at];
    if (!columnOf.has(name)) throw fault(`no column \`${name}\` (columns: ${[...columnOf.keys()].join(", ")})`);
    at++;
    names.add(columnOf.get(name));
    return (row) => row[columnOf.get(name)];
  }

  const test = either();
  if (at < tokens.length) throw fault(`\`${tokens[at].text}\` is not understood`);
  return { names, test: (row) => truth(test(row)) };
}

const truth = (value) => value === true;

function tokensOf(text) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const from = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw Error(`\`${text.slice(from).trim()[0]}\` is not understood at ${text.length - text.slice(from).trimStart().length + 1}`);
    const [whole, digits, quoted, name, sign] = match;
    const position = from + whole.length - whole.trimStart().length;
    if (digits) tokens.push({ kind: "number", text: digits, value: Number(digits), position });
    else if (quoted) tokens.push({ kind: "text", text: quoted, value: quoted.slice(1, -1).replace(/\\(.)/g, "$1"), position });
    else tokens.push({ kind: name ? "name" : "sign", text: name ?? sign, position });
  }
  return tokens;
}
