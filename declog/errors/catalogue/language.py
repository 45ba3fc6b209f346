"""DL3xx: the language and its types."""

from declog.errors.catalogue.code import Code, Known

# fmt: off
CODES = {
"DL301": Code("the expression cannot be parsed", """
    Not a Python expression: a missing bracket or operator. The caret points at the place.

    ```yaml
    metrics:
      spread: std(reward - mean(reward, over=completion)
    ```
    """, {
    "DL301.control": ("the expression holds the control character {control!r}", "delete it"),
    "DL301.empty": ("the expression is empty", "write one, such as `reward`"),
    "DL301.parse": ("the expression cannot be parsed: {cause}", "{fix}"),
}),
"DL302": Code("unknown name in an expression", """
    A name that is no signal or constant (in `formula`, alerts and `when`: no metric), or that means nothing here. The
    nearest name is suggested; a new one is declared under `signals` or `constants`.

    ```yaml
    metrics:
      median: p50(rewrad)
    ```
    """, {
    "DL302.alert_text": ("`{name}` in the text is no metric", "{fix}"),
    "DL302.axis": ("`{name}` is an axis, not a {noun}", "use it as over={name}"),
    "DL302.column_parameter": ("`{function}` takes `{name}`, and the profile has no such signal", Known("signals")),
    "DL302.member": ("`{node}` has no member `{name}`", Known("members")),
    "DL302.metric": ("`{name}` is a metric; an expression reads signals", "use `formula:` to compute with metrics"),
    "DL302.metric_signal": ("there is no signal `{name}` for this metric to reduce", "{fix}"),
    "DL302.name": ("unknown {noun} `{name}`", Known("{noun}s")),
    "DL302.one_value": ("`{name}` has one value: there is no `{key}`", "did you mean `{own}`?"),
    "DL302.quotes": ("`{word}` is no signal, and a text stands in quotes", "{fix}"),
    "DL302.run_time": ("`{name}` is not known before the run: only constants can be used here",
        "use `when` or `where`"),
    "DL302.several": ("`{name}` has several reductions", "write {choices}"),
    "DL302.slash": ("`/` divides: a member of a family is named by `column`", "column({family}, '{member}')"),
    "DL302.signal": ("unknown signal `{name}`", Known("signals")),
    "DL302.signal_in_formula": ("`{name}` is a signal; here only metrics and constants are known",
        "declare a metric: `{name}: {expr: {name}}`"),
    "DL302.unknown_metric": ("unknown metric `{name}`", Known("metrics")),
}),
"DL303": Code("unknown function", """
    No function of this name is registered. Register one with `@declog.function`, before the configuration is
    compiled.

    ```yaml
    metrics:
      logs: mean(lgo(length))
    ```
    """, {
    "DL303.called_value": ("`{name}` is a {noun} ({type}), not a function", "{name} * (...)"),
    "DL303.column_function": ("no column function `{name}` is registered", "{fix}"),
    "DL303.function": ("unknown function `{name}`", Known("functions")),
    "DL303.load": ("the {noun} `{name}` of {home} cannot be loaded from `{value}`: {error}",
        "correct that entry point, or the module, in the package"),
    "DL303.no_function": ("the {noun} `{name}` of {home} is no function: `{value}` is a {type}",
        "the package's entry point names one: {name} = \"{module}:{name}\""),
    "DL303.quantile": ("unknown function `{name}`: quantiles are p0 to p100", "p95(x), say"),
    "DL303.reduction": ("`{name}` is a reduction, not a function",
        "a metric of its own is `{name}(x)`, without `over`; a formula computes with its value"),
    "DL303.taken": ("a {noun} named `{name}` is registered already", "choose another name"),
    "DL303.two_packages": ("the {noun} `{name}` is provided by {owners}",
        "uninstall one of them, or let its package call the {noun} another name"),
}),
"DL304": Code("wrong arguments of a function", """
    Too many or too few arguments, or one that must be known at compile time and is not. The message shows the
    function's signature.

    ```yaml
    metrics:
      capped: mean(clip(reward))
    ```
    """, {
    "DL304.arity": ("`{function}` takes {count} argument{plural}", "{fix}"),
    "DL304.asynchronous": ("the column function `{name}` is asynchronous", "register a plain function"),
    "DL304.axis": ("`{function}` has no `{name}`: axes have names", "{function}(x, over=completion), or over=token"),
    "DL304.two_values": ("`{name}` is over an axis; of two values it is `{name}imum`", "{fix}"),
    "DL304.bins": ("`bins` must be a whole number from 1 to 10000", "bins=20"),
    "DL304.column_parameter": ("the column function `{name}` has the parameter `{parameter}`, which names no signal",
        "give it one parameter for each signal, by the signal's name"),
    "DL304.column_parameters": ("the parameters of the column function `{name}` are not known: {error}",
        "register a function of Python that calls it, with a parameter for each signal"),
    "DL304.constant": ("`{name}` of `{function}` must be a constant", "{fix}"),
    "DL304.edges": ("the edges of `bucket` must grow", "bucket(length, 32, 64, 128)"),
    "DL304.k": ("`k` must be at least 1", "k=1"),
    "DL304.kind": ("`{name}` of `{function}` must be {kind}", "{fix}"),
    "DL304.misses": ("`{function}` misses `{name}`", "{fix}"),
    "DL304.n": ("`n` must be at least 1", "n=1"),
    "DL304.number": ("`{name}` must be a constant number", "{name}=10, say, or a name of `constants`"),
    "DL304.parameter": ("`{function}` has no parameter `{name}`", Known("parameters")),
    "DL304.reduce_expr": ("the expression stands in `expr`", "reduce: {name}"),
    "DL304.reduction_arity": ("`{reduction}` takes {takes}", "{reduction}({letters})"),
    "DL304.reduction_misses": ("`{reduction}` misses `{name}`", "{reduction}({name}=...)"),
    "DL304.reduction_parameter": ("`{reduction}` has no parameter `{name}`", Known("parameters")),
    "DL304.regex": ("the regular expression cannot be read: {error}", "{fix}"),
    "DL304.twice": ("`{name}` is given twice", "{fix}"),
}),
"DL305": Code("wrong kind of value", """
    A number where a bool is needed, a text in arithmetic, and so on. Compare (`x > 0`), or choose (`1 if x else 0`).

    ```yaml
    metrics:
      size: mean(completion * 2)
    ```
    """, {
    "DL305.alert": ("an alert's condition is a bool, and `{node}` is {dtype}", "compare it, such as `{node} > 0`"),
    "DL305.bool": ("`{name}` needs bool, and `{node}` is {dtype}", "compare it first, such as `{node} > 0`"),
    "DL305.branches": ("the two sides of `if` differ: {shown}", "give both the same type"),
    "DL305.clause": ("`{key}` needs {needed}, and `{node}` is {dtype}", "{fix}"),
    "DL305.clause_family": ("`{key}` cannot be a family", "pick a member: column(family, 'name')"),
    "DL305.column": ("the column `{name}` is declared {type}, and `{node}` is {dtype}", "type: {dtype}"),
    "DL305.tokens": ("the tokens of `{name}` are ids, `{axis: token, type: int}`, or lists of texts, "
        "`{axis: completion, type: object}`, and `{node}` is {type}", "expr: completion_ids"),
    "DL305.token_value": ("a value of a token is a number, and `{node}` is {type}", "name one that is"),
    "DL305.column_returns": ("the column `{name}` is declared {type}, and `{function}` returns {returned}",
        "type: {returned}"),
    "DL305.comparison": ("these cannot be compared: {shown}",
        "compare numbers with numbers, texts with texts: `len(x) > 3`, `x == '3'`; a word stands in quotes"),
    "DL305.condition": ("a condition is a bool, and `{node}` is {dtype}", "compare it, such as `{node} > 0`"),
    "DL305.enabled": ("`enabled` is true or false, and `{text}` is {dtype}", "compare it, such as `beta != 0`"),
    "DL305.filter_family": ("`{field}` cannot be a family",
        "pick a member: column(family, 'name'), or sum(family, over=column)"),
    "DL305.filter_dtype": ("`{field}` needs {needed}, and `{node}` is {dtype}", "{fix}"),
    "DL305.formula": ("a formula gives a number, and this is {dtype}", "`1 if ... else 0`"),
    "DL305.operand": ("`{symbol}` needs {needed}, and `{node}` is {dtype}", "{fix}"),
}),
"DL306": Code("unknown or unusable axis", """
    `over=` or `within=` names an axis that the value does not have, or the profile does not define it. Remove the
    finer axis first, or declare `axes.group` or `axes.token`.

    ```yaml
    metrics:
      entropies: mean(mean(entropy, over=tokens))
    ```
    """, {
    "DL306.axis": ("unknown axis `{name}`", Known("axes")),
    "DL306.axis_named": ("an axis is named here", "{fix}"),
    "DL306.drawn": ("`{function}` needs values per completion of a group, and `{node}` is {axis}",
        "set `axes.group`, and give values per completion"),
    "DL306.group": ("this profile does not say what a group is", "set `axes.group: {size: N}` or `{of: SIGNAL}`"),
    "DL306.index": ("`index` counts completions of a group or groups of a batch", "index(completion) or index(group)"),
    "DL306.jaccard": ("`jaccard` compares the completions of a group", "jaccard(text, over=completion)"),
    "DL306.majority": ("`majority` needs one text per completion of a group, and it is {axis}",
        "a signal `completion text`, and `axes: {group: ...}`, which says what a group is"),
    "DL306.member": ("`{node}` is not a family", "write `{node}` alone: it has one value"),
    "DL306.needs_over": ("`{function}` inside an expression needs `over=`", "{fix}"),
    "DL306.no_axis": ("`{node}` is {axis}: it has no {label} axis", "drop the function, or remove an axis it has"),
    "DL306.no_family": ("`{node}` is not a family: it has no column axis", "use over= with one of its axes"),
    "DL306.order": ("`{node}` is {axis}; its {inner} axis must go before {outer}", "{fix}"),
    "DL306.per_group": ("values per group are needed, and this profile does not say what a group is",
        "set `axes.group: {size: N}` or `{of: SIGNAL}`"),
    "DL306.prev": ("`prev` is of values per step, and `{node}` is {axis}",
        "observe it as a signal per step; what a metric was before goes into its moving average, `ema: 0.9`"),
    "DL306.rank": ("`rank` orders completions within a group or a step, and `{node}` is {axis}",
        "rank(x, within=group)"),
    "DL306.rows_group": ("`rows: group`, and this profile does not say what a group is",
        "set `axes.group: {size: N}` or `{of: SIGNAL}`"),
    "DL306.size": ("`size` counts tokens of a completion, completions of a group or groups of a batch",
        "size(completion)"),
    "DL306.take_group": ("`take: group`, and this profile does not say what a group is",
        "set `axes.group: {size: N}` or `{of: SIGNAL}`"),
    "DL306.texts": ("`{function}` compares the completions of a group, and `{text}` is {axis}",
        "over=completion, and `axes.group`"),
    "DL306.tokens": ("this profile does not say which tokens exist", "set `axes.token.mask`"),
    "DL306.window": ("nothing is left when the step axis goes: a window is reduced by `reduce`",
        "use the reduction of the metric"),
    "DL306.within_group": ("`within: group`, and this profile does not say what a group is",
        "set `axes.group`, or `within: step`"),
}),
"DL307": Code("this syntax is not part of the language", """
    Python that the language leaves out: attributes, subscripts, lambdas, comprehensions, `&` and `|`. Write `and`,
    `or`, `not` and calls of functions.

    ```yaml
    metrics:
      short: {expr: reward, where: reward > 0.5 & length < 512}
    ```
    """, {
    "DL307.member": ("`{family}` is a family, and has no attributes", "column({family}, '{member}')"),
    "DL307.attribute": ("attributes are not part of the language here", "a function, such as abs(x)"),
    "DL307.call": ("only plain calls of functions are part of the language", "{fix}"),
    "DL307.is": ("`is` is not part of the language", "{fix}"),
    "DL307.list": ("`in` needs a list of constants", "x in ('a', 'b')"),
    "DL307.star": ("`*` is not part of the language", "name each argument"),
    "DL307.syntax": ("{what} is not part of the language", "{fix}"),
}),
"DL308": Code("the expression is too large", """
    Too long, too deep, or a constant power that is too great. Split it into derived signals.

    ```yaml
    metrics:
      power: mean(reward ** 1000)
    ```
    """, {
    "DL308.constant": ("the constant cannot be computed: {error}", "write the number that it should be"),
    "DL308.constant_size": ("the constant does not fit 64 bits", "write it as a float, such as 1e20"),
    "DL308.depth": ("the expression is nested too deeply or holds what cannot be read", "name its parts as signals"),
    "DL308.exponent": ("a constant exponent is at most {limit}", "** {limit}"),
    "DL308.length": ("the expression has {count} characters; at most {limit} are read", "name its parts as signals"),
    "DL308.nested_signals": ("derived signals are nested more than 60 deep at `{name}`", "observe one of them"),
    "DL308.number": ("the number does not fit 64 bits", "write it as a float, such as 1e20"),
    "DL308.size": ("the expression is too large: at most {nodes} operations, nested {depth} deep",
        "name its parts as signals"),
}),
"DL309": Code("signals are defined in a circle", """
    A signal, metric or filter is defined by itself, perhaps through others. Let one of them be observed, or break the
    circle.

    ```yaml
    signals:
      scaled: reward / spread
      spread: std(scaled, over=completion)
    ```
    """, {
    "DL309.filters": ("filters filter each other in a circle: {circle}", "break the circle"),
    "DL309.formulas": ("formulas are defined in a circle: {circle}", "break the circle"),
    "DL309.hidden": ("what `when` hides is hidden from what reads it, and here in a circle: {circle}",
        "break the circle"),
    "DL309.signals": ("signals are defined in a circle: {circle}", "let one of them be observed"),
}),
"DL310": Code("the value has the wrong axis for this place", """
    A value is finer or coarser than this place takes: a filter needs one value per completion. Reduce the finer axis:
    `mean(x, over=token)`, `any(x, over=token)`.

    ```yaml
    filters:
      hard: {kind: first, n: 4, where: kl > 1}
    ```
    """, {
    "DL310.bucket": ("`bucket` labels completions, and this is per token", "bucket(mean(x, over=token), ...)"),
    "DL310.by": ("`by` per token is not possible: labels are per completion", "label the completion"),
    "DL310.clause": ("`{key}` is {finer}, and the expression is {axis}: it may not be finer",
        "{function}({node}, over={label})"),
    "DL310.clause_label": ("`by` is {finer}, and the expression is {axis}: it may not be finer",
        "labels that are {axis}"),
    "DL310.clause_any": ("`{key}` is {finer}, and the expression is {axis}: it may not be finer",
        "any({node}, over={label})  or  all({node}, over={label})"),
    "DL310.column": ("the column `{name}` is {axis}; a row {row}", "expr: {expr}"),
    "DL310.column_parameter": ("`{function}` takes `{parameter}`, which is {axis}, and is called with one {label}",
        "declare a signal of what it needs, with `over=`, and name that"),
    "DL310.extras": ("columns of log_extra are per completion; a row is a {row}",
        "undeclared: drop, or a schema of its own"),
    "DL310.filter_axis": ("filters.{filter}.{field} is {axis}, and a row of the table `{table}` is a {row}",
        "a filter with `{field}: {expr}`"),
    "DL310.filter_take": ("filters.{filter} takes groups, and a row of the table `{table}` is a {row}",
        "a filter without `take`"),
    "DL310.filter_group": ("filters.{filter} chooses within a group, and a row of the table `{table}` is a {row}",
        "a filter with `within: step`"),
    "DL310.filter_any": ("filters.{name}.{field} is per token; a filter needs one value per completion",
        "any({node}, over=token)  or  all({node}, over=token)"),
    "DL310.filter_mean": ("filters.{name}.{field} is per token; a filter needs one value per completion",
        "mean({node}, over=token)"),
    "DL310.fold": ("a per-token expression cannot use a value that depends on groups or batches", "{fix}"),
    "DL310.formula_combine": ("the values of its pieces are combined once, and its metrics say {combines}",
        "give them the same `combine`"),
    "DL310.formula_empty": ("the formula reads no metric", "use `expr:` for signals"),
    "DL310.formula_labels": ("the formula reads metrics whose labels are not the same: {labels}",
        "give them the same `by`"),
    "DL310.formula_phases": (
        "a batch of one phase is none of another, and the formula reads metrics of {phases} with `pool: {pool}`",
        "give them `pool: {other}`, or `pool: window`"),
    "DL310.formula_rows": ("`{function}` is of rows, and metrics have none", "an `expr` over signals, reduced"),
    "DL310.formula_seconds": ("`seconds` are those of a whole window, and the metrics have a `pool: {pool}`",
        "metrics with `pool: window`"),
    "DL310.formula_total": ("`{metric}` is a total of the whole run, and `seconds` are those of one window",
        "`elapsed` for the whole run, or a metric without `cumulative`"),
    "DL310.formula_windows": ("a formula needs metrics of one window and pool",
        "give them the same `every` and `pool`"),
    "DL310.group_of": ("`{name}` must be an int, a text or an object per completion", "{axis: completion, type: int}"),
    "DL310.axis_off": ("`{name}` is off ({reason}), and metrics or tables read what it says of rows",
        "switch it on, or leave this key out"),
    "DL310.instead": ("`{node}` cannot stand for `{name}`: one of them has members or labels that the other has not",
        "another metric"),
    "DL310.lengths": ("`{name}` is an int per completion", "{axis: completion, type: int}"),
    "DL310.mask": ("`mask` says which tokens exist, and `{name}` is {type}", "drop `mask`"),
    "DL310.mask_type": ("a mask is a bool per token, and `{text}` is {type}", "declare it {axis: token, type: bool}"),
    "DL310.split_group": ("`{name}` is per group, and groups are spread over ranks: none of them has its values",
        "axis: completion, or split: none"),
    "DL310.split_text": ("`{node}` reads text of groups that are spread over ranks", "split: none"),
    "DL310.token_type": ("a {type} per token cannot be folded", "observe it per completion"),
    "DL310.token_value": ("`{node}` is {axis}, and a value of a token is per token or coarser", "drop it"),
    "DL310.tokens_rows": ("`{name}` are the tokens of a completion, and a row of this table is none",
        "a schema of its own, of a table with `rows: completion`"),
    "DL310.take_group": ("filters.{name} takes groups, and its `{field}` is {axis}", "{field}: {expr}"),
    "DL310.weight": ("`weight` per token is not possible", "multiply in `expr`, or weigh the completion"),
    "DL310.when": ("`{key}` is known each {window} steps, and `{name}` is logged each {logged}", "every: {window}"),
}),
"DL311": Code("unknown reduction", """
    No reduction of this name. The nearest is suggested; `pNN` is any quantile; `@declog.reducer` registers one.

    ```yaml
    metrics:
      average: {expr: reward, reduce: avg}
    ```
    """, {
    "DL311.empty": ("`reduce` names no reduction", "reduce: mean"),
    "DL311.several": ("`{text}` is no reduction: several are a list", "{fix}"),
    "DL311.name": ("unknown reduction `{name}`", Known("reductions")),
    "DL311.quantile": ("unknown reduction `{name}`: quantiles are p0 to p100", "{fix}"),
}),
"DL312": Code("the reduction does not fit the value", """
    A reduction got too many or too few values, or values of a kind that it does not take. The message says what it
    reduces.

    ```yaml
    metrics:
      middle: {expr: completion, reduce: p50}
    ```
    """, {
    "DL312.arity": ("`{reduction}` reduces {takes}, and {given} given", "{fix}"),
    "DL312.combine": ("`{reduction}` covers a window: there is no {combine} of histograms", "pool: window"),
    "DL312.cumulative": (
        "`{reduction}` needs all its rows at once, and `cumulative` keeps none from the start of the run",
        "reduce: mean, or another one with a mergeable state"),
    "DL312.over_run": (
        "`{key}` goes on from step to step, and `pool: {pool}` has a value for each rank of a whole window",
        "pool: step"),
    "DL312.ema_cumulative": ("`ema` is an average over the run already", "drop `cumulative`"),
    "DL312.family": ("`{reduction}` does not take a family", "pick a member: column(family, 'name')"),
    "DL312.number": ("`{reduction}` needs numbers, and `{node}` is {type}",
        "count it: `sum(1 if present({node}) else 0)`"),
    "DL312.text": ("`{reduction}` takes texts here, and `{node}` is {type}", "a signal of `type: text`"),
    "DL312.token_labels": ("`{reduction}` over tokens is a histogram per batch, and has no labels", "{fix}"),
    "DL312.token_where": ("`{reduction}` over tokens is a histogram per batch: `where` cannot read groups or texts",
        "{fix}"),
    "DL312.tokens": ("`{reduction}` cannot be computed over tokens",
        "per completion it is another number: `{reduction}({means})`"),
    "DL312.weight": ("`weight` works with mean and sum, not with {reduction}", "drop `weight`"),
}),
"DL313": Code("signals of different phases in one expression", """
    Two signals of one expression are observed in different phases, whose rows do not correspond. Observe them in one
    phase.

    ```yaml
    metrics:
      weighted: mean(kl * reward)
    ```
    """, {
    "DL313.derived": (
        "`{name}` is {type} in phase `{phase}`, and only values per completion have rows in another phase",
        "reduce it, such as with `over=token`, or name no `phase`"),
    "DL313.expression": ("`{name}` is per token in phase `{phase}`, and `{other}` is observed in `{other_phase}`",
        "observe it in `{phase}` too: `phase: {first: {other_phase}, second: {phase}}`"),
    "DL313.lengths": ("tokens of phase `{phase}` are packed by `{name}`, which is observed in `{other}`",
        "observe the lengths in the same phase"),
    "DL313.metric": ("`{name}` is per token in phase `{phase}`, and `{metric}` reads values of `{other}`",
        "observe them in `{phase}` too"),
    "DL313.phases": ("values of different phases in one expression: {signals}", "observe them in one phase"),
    "DL313.signal": ("`{name}` is needed in phase `{phase}`, and is observed in `{homes}`",
        "phase: {first: {home}, second: {phase}}, and observe it there too"),
    "DL313.table": ("the table `{name}` reads values of different phases: {phases}",
        "leave out {fewest}, or observe all of it in one phase"),
}),
"DL314": Code("a function's result does not have its declared type", """
    A function that was registered with `@declog.function` returned another shape or type than it declares. Return a
    tensor of the arguments' shape, or declare what it `returns`.

    ```python
    import declog

    @declog.function
    def first_half(x):
        return x[: len(x) // 2]

    try:
        declog.plan(declog.compose("grpo", ['+declog.metrics.half="mean(first_half(reward))"']))
    except declog.ConfigError as error:
        print(error)
    ```
    """, {
    "DL314.declared": ("the function `{function}` {problem}", "correct the function, or its `returns=`"),
    "DL314.rows": ("a registered function returned shape {shape} for arguments of shape {arguments}",
        "return a value for each: a function is elementwise; what reduces is a `@declog.reducer`"),
    "DL314.tokens": ("`{function}` must return a tensor of shape {shape}",
        "return a value for each: a function is elementwise; what reduces is a `@declog.reducer`"),
}),
}
