/* report.html of one run, or of several: {runs: [{name, folder, log, config, result, eval, curves,
   trace}], outcomes: a table}. Any of a run's files may be missing, or be odd. */

const CLASSES = 10, IMAGE_SIDE = 28, FEW_MISTAKES = 6, MUCH_WAITING = 0.2;

/* One curve: its name in the data, what it is, how it looks, and its colour if there is one run. */
const CHARTS = [
    {title: 'Loss', kind: 'log', curves: [
        ['loss', 'training, rank 0\'s batches', 'thin', null, 0],
        ['train_loss', 'training, mean of the epoch', 'dashed', 'square', 0],
        ['val_loss', 'validation', 'line', 'triangle', 2],
        ['test_loss', 'test', 'line', 'circle', 1]]},
    {title: 'Accuracy', kind: 'percent', curves: [
        ['val_acc', 'validation', 'line', 'triangle', 2],
        ['test_acc', 'test', 'line', 'circle', 1]]},
    {title: 'Learning rate', kind: 'linear', curves: [['lr', 'learning rate', 'line', null, 2]]},
    {title: 'Images per second', kind: 'linear', curves: [
        ['images_per_s', 'since the last logged step', 'thin', null, 3],
        ['epoch_images_per_s', 'of the epoch', 'line', 'circle', 3]]},
];

/* As docs/modes.md has them; a phase's colour is the one of its name, in report.css. */
const PHASES = {
    data: 'indices to pixels, on the device',
    broadcast: 'parameters on the move',
    scatter: 'inputs on their way to the replicas',
    forward: 'the network\'s outputs and the loss',
    gather: 'outputs on their way to the master',
    backward: 'the gradients, and all that is sent meanwhile',
    reduce: 'gradients on the move that backward does not hide',
    waiting: 'for a rank or replica that has not come yet',
    optimizer: 'the new weights',
    accelerator: 'a replayed CUDA graph, which is all of a step',
};

/* Settings that say where a run's files are and what it prints, not what it trains. */
const ASIDE = ['run_dir', 'resume', 'quiet', 'json', 'progress', 'log_format', 'log_interval',
               'keep', 'config', 'save_every', 'save_model', 'trace', 'trace_steps'];

const colourOf = number => `var(--c${number})`;

/* A setting's value or a fact of the run as text; '' if it is not known. */
function textOf(value) {
    return typeof value === 'boolean' ? (value ? 'yes' : 'no')
        : typeof value === 'number' ? String(Number(value.toPrecision(9)))
        : typeof value === 'string' ? value.slice(0, 128) : '';
}

const own = (object, key) =>
    object !== null && typeof object === 'object' && Object.hasOwn(object, key) ? object[key]
                                                                                : undefined;
const settingOf = (run, name) => textOf(own(own(run.config?.settings, name), 'value'));
const factsOf = run => run.config?.run ?? run.result;

/* The value that the run had: of a setting that was not given, what came of it. */
const effectiveOf = (run, name) => settingOf(run, name) || textOf(own(factsOf(run), name));

function factOf(run, name) {
    const value = own(factsOf(run), name), more = list(value).length - 1;
    return textOf(Array.isArray(value) ? value[0] : value) + (more > 0 ? ` and ${more} more` : '');
}

const namesOf = (runs, key) => [...new Set(runs.flatMap(run => {
    const object = run.config?.[key];
    return object !== null && typeof object === 'object' ? Object.keys(object) : [];
}))];

const differs = (runs, name, valueOf) =>
    runs.some(run => valueOf(run, name) !== valueOf(runs[0], name));

function addKey(parent, run, number) {
    add(parent, 'span', {class: 'key', style: `background:${colourOf(number)}`});
    parent.append(clean(run.name));
}

/* In which settings, and on which machine, the runs differ. */
function addDifferences(main, runs) {
    const all = [...namesOf(runs, 'settings').filter(name => !ASIDE.includes(name))
                     .map(name => [name, effectiveOf]),
                 ...['world', 'device', 'gpu', 'processor', 'system'].map(name => [name, factOf])]
        .filter(([name, valueOf]) => differs(runs, name, valueOf));
    const p = add(main, 'p', {},
                  all.length > 0 ? 'They differ in: ' : 'They have the same settings.');
    all.forEach(([name, valueOf], i) => {
        p.append(i > 0 ? '; ' : '');
        add(p, 'b', {}, name);
        p.append(' ', clean(runs.map(run => valueOf(run, name) || '–').join(' | ')));
    });
}

function addOutcomes(main, {runs, outcomes}) {
    const body = addTable(main, outcomes.columns);
    outcomes.rows.forEach(({cells}, number) => {
        const row = add(body, 'tr');
        addKey(add(row, 'td'), runs[number], number);
        for (const cell of cells.slice(1))
            add(row, 'td', {class: 'n'}, cell);
    });
}

/* A best accuracy that is the last one is said once. */
function addTiles(main, {columns, rows: [{cells}]}) {
    const tiles = add(main, 'div', {class: 'tiles'});
    columns.forEach((name, i) => {
        if (i === 0 || (name === 'best test accuracy' && cells[i] === cells[i - 1]))
            return;
        const tile = add(tiles, 'div');
        add(tile, 'b', {}, cells[i]);
        tile.append(clean(name));
    });
}

/* The run in a line: what was trained, how, when, and by what. */
function addSubtitle(main, run) {
    const facts = run.config?.run, date = run.config?.date;
    if (!facts || typeof date !== 'string')
        return;
    const fact = name => textOf(own(facts, name));
    const p = add(main, 'p', {class: 'faint'}, `${fact('model')} with ${fact('optimizer_name')}, ` +
        `${fact('mode')}, world size ${fact('world')}, on ${fact('device')}, ${date}`);
    for (const [file, is] of [['train.log', run.log], ['config.json', true],
                              ['metrics.jsonl', run.curves.loss.points.length > 0]])
        if (is) {
            p.append(', ');
            add(p, 'a', {href: file}, file);
        }
}

function addLegend(figure, chart, runs, every) {
    const p = add(figure, 'p', {class: 'faint'});
    for (const [name, what, form, marker, colour] of chart.curves) {
        if (!runs.some(run => run.curves[name].points.length > 0))
            continue;
        const forms = {thin: 'faint line', dashed: 'dashed line', line: 'line'};
        const words = form === 'line' && marker ? MARKERS[marker].words : forms[form];
        addKeyPart(p, runs.length === 1 && colourOf(colour),
                   `${marker ? `${MARKERS[marker].glyph} ` : ''}${words}: ${what}. `);
    }
    if (every > 1)
        p.append(`The faint line is the mean of ${every} logged steps each.`);
}

function addChart(parent, chart, runs, over) {
    const figure = add(parent, 'figure');
    const series = runs.flatMap((run, number) => chart.curves.map(
        ([name, what, form, marker, colour]) => ({
            name: runs.length > 1 ? `${run.name}, ${what}` : what,
            colour: colourOf(runs.length > 1 ? number : colour),
            form, marker,
            points: run.curves[name].points.map(point => [point[over], point[2]])})));
    const marks = runs.length > 1 || over > 0 ? [] : list(runs[0].config?.starts).slice(1)
        .map(start => start?.step).filter(known)
        .map(step => ({at: step, text: `resumed after step ${step}`}));
    const x = over > 0 ? {label: 'seconds', one: 'second'} : {label: 'steps', one: 'step'};
    drawChart(figure, {title: chart.title, x: {kind: 'linear', zero: true, ...x},
                       y: {kind: chart.kind}, series, marks});
    addLegend(figure, chart, runs, Math.max(1, ...runs.flatMap(run => chart.curves
        .filter(([, , form]) => form === 'thin').map(([name]) => run.curves[name].every))));
}

function addCharts(main, runs) {
    add(main, 'h2', {}, 'Curves');
    const nav = add(main, 'nav'), charts = add(main, 'div', {class: 'charts'});
    const show = over => {
        charts.replaceChildren();
        buttons.forEach((one, i) => one.setAttribute('aria-pressed', i === over));
        for (const chart of CHARTS)
            addChart(charts, chart, runs, over);
    };
    nav.append('over');
    const buttons = ['steps', 'seconds'].map((name, i) => button(nav, name, () => show(i)));
    show(0);
}

/* Which steps the phases are of, if the run was resumed; else ''. */
function spanOf(run) {
    const starts = list(run.config?.starts), date = run.result?.date;
    const at = typeof date === 'string' ? starts.findLastIndex(start => start?.date === date) : -1;
    const from = starts[at]?.step, to = starts[at + 1]?.step;
    return at < 0 ? '' : (from > 0 ? `, since the resume at step ${from}` : '') +
        (known(to) ? `, until the resume at step ${to}` : '');
}

/* Whom rank 0 waited for, as far as rank 0 knows: with two ranks it was the other one. */
function lateness(result, share) {
    const isDp = result.replicas > 1;
    if (!(share >= MUCH_WAITING) || (!(result.world > 1) && !isDp))
        return null;
    return `${(100 * share).toFixed(0)} % of the time rank 0 waited for ` +
        (isDp ? 'replicas, which came later.' : result.world === 2 ? 'rank 1, which came later.'
            : 'other ranks, which came later; --trace FILE shows which.');
}

/* Returns the phases in the bar. */
function addPhases(main, run) {
    const parts = Object.keys(PHASES).map(name => ({name, seconds: run.result?.phases?.[name]}))
        .filter(({seconds}) => known(seconds) && seconds > 0);
    const total = parts.reduce((sum, part) => sum + part.seconds, 0);
    if (parts.length === 0) {
        add(main, 'p', {}, 'Known if the run ends: rank 0 then writes result.json.');
        return [];
    }
    const figure = add(main, 'figure');
    const svg = addSvg(figure, 'bar', 1000, 22, 'the phases of the steps',
                       {preserveAspectRatio: 'none', height: 22});
    const key = add(figure, 'p', {class: 'faint'});
    let at = 0;
    for (const {name, seconds} of parts) {
        const share = seconds / total;
        const text = `${name} ${Number(seconds.toPrecision(3))} s (${(100 * share).toFixed(1)} %)`;
        const rect = add(svg, 'rect', {x: at, width: 1000 * share, height: 22,
                                       style: `fill:var(--${name})`});
        add(rect, 'title', {}, text);
        at += 1000 * share;
        addKeyPart(key, `var(--${name})`, text);
    }
    saveButton(figure, svg, 'phases');
    const late = lateness(run.result, (run.result.phases.waiting ?? 0) / total);
    if (late !== null)
        add(main, 'p', {}, late);
    if (run.result.world > 1 && run.result.bind_note)
        add(main, 'p', {}, `Rank 0 was not bound to cores of its own: ${run.result.bind_note}.`);
    return parts.map(({name}) => name);
}

function addAllPhases(main, runs) {
    const shown = new Set(), alone = runs.length === 1;
    add(main, 'h2', {}, `Where the steps' time went, on rank 0${alone ? spanOf(runs[0]) : ''}`);
    runs.forEach((run, number) => {
        if (!alone) {
            const name = add(main, 'div');
            addKey(name, run, number);
            name.append(spanOf(run));
        }
        addPhases(main, run).forEach(name => shown.add(name));
    });
    const meanings = Object.entries(PHASES).filter(([name]) => shown.has(name));
    if (meanings.length === 0)
        return;
    const p = add(main, 'p', {class: 'faint'});
    meanings.forEach(([name, meaning], i) => {
        add(p, 'b', {}, name);
        p.append(`: ${meaning}${i + 1 < meanings.length ? '; ' : '.'}`);
    });
}

/* What the model has learned: eval.json. */

function countOf(test, label, predicted) {
    const n = test.confusion?.[label]?.[predicted];
    return Number.isInteger(n) && n >= 0 && n < 2 ** 31 ? n : 0;
}

const classOf = (test, c) => typeof test.classes?.[c] === 'string' ? test.classes[c] : '?';
const digits = Array.from({length: CLASSES}, (_, c) => c);
const pairs = digits.flatMap(a => digits.filter(b => b !== a).map(b => [a, b]));

/* The classes that are confused most often, and how often. */
function worstPair(test) {
    return pairs.map(([a, b]) => ({a, b, n: countOf(test, a, b)}))
        .reduce((most, pair) => pair.n > most.n ? pair : most);
}

/* A digit's number is its name. */
function classText(test, c) {
    const name = classOf(test, c);
    return name.length > 1 ? `${c} ${name}` : String(c);
}

/* Shaded by its share: what is right of its row, a mistake of the most frequent one. */
function addCell(row, test, label, predicted, most) {
    const n = countOf(test, label, predicted), hit = label === predicted;
    const all = digits.reduce((sum, c) => sum + countOf(test, label, c), 0);
    if (n === 0) {
        add(add(row, 'td', {class: 'faint'}), hit ? 'b' : 'span', {}, hit ? '0' : '·');
        return;
    }
    const strength = hit ? 0.1 + 0.35 * n / all : 0.06 + 0.54 * Math.sqrt(n / most);
    const name = classOf(test, label);
    add(row, 'td', {class: hit ? 'hit' : 'miss', style: `--a:${strength.toFixed(2)}`,
                    title: hit ? `${name} recognised: ${n}`
                               : `${name} taken for ${classOf(test, predicted)}: ${n}`}, n);
}

function addConfusion(parent, test, isExplained) {
    const most = worstPair(test).n;
    add(parent, 'h3', {}, 'Confusion matrix');
    const body = addTable(parent, ['', ...digits], {class: 'confusion'});
    for (const label of digits) {
        const row = add(body, 'tr');
        add(row, 'th', {}, classText(test, label));
        for (const predicted of digits)
            addCell(row, test, label, predicted, most);
    }
    if (isExplained)
        add(parent, 'p', {class: 'faint'}, 'Rows: the true class. Columns: what the model says. ' +
            'Bold and blue: right. Orange: mistaken, the stronger the more often.');
}

function addClasses(parent, test) {
    const percent = value => known(value) ? `${(100 * value).toFixed(1)} %` : '–';
    const least = Math.min(1, ...list(test.recall).filter(known));
    add(parent, 'h3', {}, 'Accuracy of each class');
    const body = addTable(parent, ['class', 'images', 'recall', 'precision', 'mistaken'],
                          {class: 'classes'});
    for (const c of digits) {
        const row = add(body, 'tr'), recall = test.recall?.[c];
        add(row, 'td', {}, classText(test, c));
        add(row, 'td', {class: 'n'}, digits.reduce((sum, b) => sum + countOf(test, c, b), 0));
        add(row, 'td', {class: 'n'}, percent(recall));
        add(row, 'td', {class: 'n'}, percent(test.precision?.[c]));
        const width = recall < 1 && least < 1 ? 100 * (1 - recall) / (1 - least) : 0;
        add(add(row, 'td', {class: 'share'}), 'i', {style: `width:${width.toFixed(1)}%`});
    }
    add(parent, 'p', {class: 'faint'}, 'Recall: of the class\' images, those that are ' +
        'recognised. Precision: of those taken for the class, those that are of it. The bar is ' +
        'what recall leaves.');
}

/* side x side pixels, two hexadecimal digits each: greys, or with a sign, where 128 is transparent,
   more is orange and less is blue. Nothing for what is no picture. */
function addPicture(parent, side, pixels, isSigned, text) {
    if (typeof pixels !== 'string' || pixels.length !== 2 * side * side ||
        /[^0-9a-f]/i.test(pixels))
        return;
    const canvas = add(parent, 'canvas', {width: side, height: side, title: text, role: 'img',
                                          'aria-label': text});
    const context = canvas.getContext('2d'), image = context.createImageData(side, side);
    for (let i = 0; i < side * side; i++) {
        const value = parseInt(pixels.slice(2 * i, 2 * i + 2), 16);
        const colour = value > 128 ? [213, 94, 0] : [0, 114, 178];
        image.data.set(isSigned ? [...colour, Math.min(255, 2 * Math.abs(value - 128))]
                                : [value, value, value, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
}

function addMistakes(parent, test, most, isExplained) {
    const mistakes = list(test.mistakes);
    add(parent, 'h3', {}, 'The worst mistakes');
    if (mistakes.length === 0) {
        add(parent, 'p', {}, 'There are none.');
        return;
    }
    if (isExplained)
        add(parent, 'p', {class: 'faint'}, 'The true class → what the model says, how sure it ' +
            'is, and the image\'s number in the test set. The greatest loss comes first.');
    const pictures = add(parent, 'div', {class: 'pictures'});
    for (const mistake of mistakes.slice(0, most)) {
        const figure = add(pictures, 'figure');
        const label = classOf(test, mistake?.label), name = classOf(test, mistake?.predicted);
        const sure = mistake?.probabilities?.[mistake.predicted], number = textOf(mistake?.index);
        addPicture(figure, IMAGE_SIDE, mistake?.pixels, false,
                   `test image ${number}: ${label}, taken for ${name}`);
        if (figure.firstChild === null) {
            figure.remove();
            continue;
        }
        add(figure, 'b', {}, `${label} → ${name}`);
        add(figure, 'figcaption', {}, known(sure) ? `${(100 * sure).toFixed(1)} %` : '');
        add(figure, 'figcaption', {}, `no. ${number}`);
    }
}

function addFilters(parent, {filters}) {
    const pictures = list(filters?.pixels), side = filters?.side;
    if (!Number.isInteger(side) || side < 1 || side > IMAGE_SIDE || pictures.length === 0)
        return;
    add(parent, 'h3', {}, 'What the first layer looks for');
    const which = pictures.length < filters.outputs ? `the first ${pictures.length} of`
                                                    : 'each of the';
    add(parent, 'p', {class: 'faint'}, `${textOf(filters.parameter)}, ${side} x ${side} weights ` +
        `of ${which} ${textOf(filters.outputs)} outputs. Ink on orange raises an output, on ` +
        'blue it lowers it; each picture has a scale of its own.');
    const all = add(parent, 'div', {class: `pictures filters${side > 7 ? ' large' : ''}`});
    pictures.forEach((pixels, i) => {
        const scale = filters.scales?.[i];
        addPicture(all, side, pixels, true, `output ${i}, greatest weight ` +
            (known(scale) ? Number(scale.toPrecision(3)) : '–'));
    });
}

function addSummary(parent, run) {
    const test = run.eval, last = run.last_step, worst = worstPair(test);
    parent = add(parent, 'p', {}, `${textOf(test.correct)} of ${textOf(test.images)} test images ` +
        'are right' + (Number.isInteger(test.step) ? ` after step ${test.step}` : '') +
        (last > test.step ? ', and the run has gone on since' : '') + '.');
    if (worst.n > 0)
        parent.append(clean(` Most often ${classOf(test, worst.a)} is taken for ` +
                            `${classOf(test, worst.b)} (${worst.n} times).`));
}

function addAbsent(parent, {folder}) {
    const p = add(parent, 'p', {}, 'There is no eval.json: the run has not ended, was ' +
        'interrupted or is of an older program. To test the model that it has saved: ');
    add(p, 'code', {}, `mnist_ddp eval --checkpoint ${folder} --out ${folder}`);
    p.append(', then ');
    add(p, 'code', {}, `mnist_ddp report ${folder}`);
    p.append('.');
}

function addLearned(main, runs) {
    const alone = runs.length === 1;
    add(main, 'h2', {}, 'What the model has learned');
    const place = alone ? main : add(main, 'div', {class: 'charts'});
    runs.forEach((run, number) => {
        const part = alone ? place : add(place, 'div');
        if (!alone)
            addKey(add(part, 'div'), run, number);
        if (run.eval === null || typeof run.eval !== 'object') {
            addAbsent(part, run);
            return;
        }
        addSummary(part, run);
        const tables = alone ? add(part, 'div', {class: 'charts'}) : part;
        addConfusion(add(tables, 'div'), run.eval, number === 0);
        if (alone)
            addClasses(add(tables, 'div'), run.eval);
        addMistakes(part, run.eval, alone ? Infinity : FEW_MISTAKES, number === 0);
        if (alone)
            addFilters(part, run.eval);
    });
}

/* A row per name, a column per run. */
function addSettingRows(parent, runs, names, isMarked, valueOf) {
    const keys = runs.map((run, number) => head => addKey(head, run, number));
    const body = addTable(parent, runs.length > 1 ? ['', ...keys] : []);
    for (const name of names) {
        const row = add(body, 'tr', isMarked(name) ? {class: 'differs'} : {});
        add(row, 'td', {}, name);
        for (const run of runs)
            add(row, 'td', {}, valueOf(run, name));
    }
}

/* Several runs show the rows in which they differ, one run those that are not its defaults: the
   others are folded away. */
function addSettings(main, runs) {
    const alone = runs.length === 1;
    const isDefault = name => runs.every(run => {
        const origin = own(own(run.config?.settings, name), 'origin');
        return typeof origin !== 'string' || origin === 'default';
    });
    const isMarked = name => differs(runs, name, effectiveOf);
    const isFolded = alone ? isDefault : name => !isMarked(name);
    const names = namesOf(runs, 'settings'), valueOf = alone ? settingOf : effectiveOf;
    add(main, 'h2', {}, 'Settings');
    for (const run of runs)
        add(add(main, 'p'), 'code', {}, list(run.config?.command).map(textOf).join(' '));
    addSettingRows(main, runs, names.filter(name => !isFolded(name)), isMarked, valueOf);
    const details = add(main, 'details');
    add(details, 'summary', {},
        `the others, which ${alone ? 'have their defaults' : 'are the same in all runs'}`);
    addSettingRows(details, runs, names.filter(isFolded), isMarked, valueOf);
}

function addFacts(main, runs) {
    const isMarked = name => differs(runs, name, factOf), names = namesOf(runs, 'run');
    const alone = runs.length === 1;
    add(main, 'h2', {}, 'The run and its machine');
    addSettingRows(main, runs, names.filter(name => alone || isMarked(name)), isMarked, factOf);
    if (alone)
        return;
    const details = add(main, 'details');
    add(details, 'summary', {}, 'what is the same in all runs');
    addSettingRows(details, runs, names.filter(name => !isMarked(name)), isMarked, factOf);
}

function runsPage(main, data) {
    const {runs, outcomes} = data;
    if (runs.length > 1) {
        addDifferences(main, runs);
        addOutcomes(main, data);
    } else {
        addSubtitle(main, runs[0]);
        addTiles(main, outcomes);
    }
    addCharts(main, runs);
    addAllPhases(main, runs);
    if (runs[0].trace) {
        add(main, 'h2', {}, 'What every rank did when');
        drawTrace(main, runs[0].trace, false);
    }
    addLearned(main, runs);
    const place = runs.length > 1 ? main : add(main, 'div', {class: 'charts'});
    addSettings(runs.length > 1 ? main : add(place, 'div'), runs);
    addFacts(runs.length > 1 ? main : add(place, 'div'), runs);
}
