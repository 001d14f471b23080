'use strict';

const CLASSES = 10, SIDE = 28, PEN = 20, POINTS = 400;
const get = id => document.getElementById(id);
const paper = get('paper'), ink = paper.getContext('2d', {willReadFrequently: true});

/* The paper: dark on white, whatever the page's colours. */

let sheet = 0; /* counts clean sheets of paper: an answer is for the one it was asked about */

function clearPaper() {
    sheet++;
    ink.fillStyle = '#fff';
    ink.fillRect(0, 0, paper.width, paper.height);
    showAnswer(null);
}

function pointOf(event) {
    const box = paper.getBoundingClientRect();
    return [(event.clientX - box.left) * paper.width / box.width,
            (event.clientY - box.top) * paper.height / box.height];
}

let last = null; /* the pen's last point; null: it is lifted */

function drawTo(event) {
    for (const part of [...event.getCoalescedEvents?.() ?? [], event]) {
        const point = pointOf(part);
        ink.beginPath();
        ink.moveTo(...last);
        ink.lineTo(...point);
        ink.stroke();
        last = point;
    }
    ask();
}

function beginStroke(event) {
    event.preventDefault();
    try {
        paper.setPointerCapture(event.pointerId);
    } catch {
        /* the pointer is gone already */
    }
    ink.lineWidth = PEN;
    ink.lineCap = ink.lineJoin = 'round';
    ink.strokeStyle = '#111';
    last = pointOf(event);
    drawTo(event);
}

function endStroke() {
    last = null;
}

/* A PGM file of what is on the paper. */
function paperAsFile() {
    const {width, height} = paper, pixels = ink.getImageData(0, 0, width, height).data;
    const header = new TextEncoder().encode(`P5 ${width} ${height} 255\n`);
    const file = new Uint8Array(header.length + width * height);
    file.set(header);
    for (let i = 0; i < width * height; i++)
        file[header.length + i] = pixels[4 * i];
    return file;
}

/* One question at a time; what has changed meanwhile is asked when the answer is there. */

let asking = false, changed = false;

async function ask() {
    changed = true;
    if (asking)
        return;
    asking = true;
    while (changed) {
        changed = false;
        const asked = sheet;
        try {
            const answer = await fetch('/predict', {
                method: 'POST',
                headers: {'Content-Type': 'application/octet-stream'},
                body: paperAsFile(),
            });
            const found = await answer.json();
            if (asked === sheet)
                showAnswer(found);
        } catch {
            lost();
            break;
        }
    }
    asking = false;
}

/* The answer */

let classes = Array.from({length: CLASSES}, (_, i) => String(i));

function add(parent, tag, className) {
    const element = parent.appendChild(document.createElement(tag));
    element.className = className ?? '';
    return element;
}

function makeBars() {
    const bars = get('bars');
    bars.replaceChildren();
    bars.className = classes.some(name => name.length > 2) ? 'named' : '';
    for (const name of classes) {
        const bar = add(bars, 'div', 'bar');
        add(bar, 'span').textContent = name;
        add(add(bar, 'div', 'track'), 'div', 'fill');
        add(bar, 'span').textContent = '–';
    }
}

function showAnswer(answer) {
    const {label, probabilities, picture, error} = answer ?? {};
    get('label').textContent = label === undefined ? '–' : classes[label];
    get('note').textContent = error ??
        'The ink, scaled into 20 × 20 pixels and centred by its mass, as MNIST was made.';
    drawPicture(get('seen'), picture);
    [...get('bars').children].forEach((bar, i) => {
        const share = probabilities?.[i];
        bar.classList.toggle('first', i === label);
        bar.querySelector('.fill').style.width = `${100 * (share ?? 0)}%`;
        bar.lastChild.textContent = share == null ? '–' : `${(100 * share).toFixed(1)} %`;
    });
}

/* `picture`: two hex digits a pixel, 0 is background; undefined: none. */
function drawPicture(canvas, picture) {
    const context = canvas.getContext('2d'), image = context.createImageData(SIDE, SIDE);
    for (let i = 0; i < SIDE * SIDE; i++) {
        const grey = picture ? 255 - parseInt(picture.slice(2 * i, 2 * i + 2), 16) : 255;
        image.data.set([grey, grey, grey, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
}

/* Images of the test set */

let firstExample = 0;

async function showExamples() {
    const {examples} = await (await fetch(`/examples/${firstExample}`)).json();
    get('pictures').replaceChildren();
    for (const {index, label, picture} of examples) {
        const button = add(get('pictures'), 'button');
        button.type = 'button';
        button.ariaLabel = `test image ${index}, a ${classes[label]}`;
        const canvas = add(button, 'canvas');
        canvas.width = canvas.height = SIDE;
        drawPicture(canvas, picture);
        button.addEventListener('click', () => {
            clearPaper();
            ink.imageSmoothingEnabled = false;
            ink.drawImage(canvas, 0, 0, paper.width, paper.height);
            get('truth').textContent = `Test image ${index}, labelled ${classes[label]}.`;
            ask();
        });
    }
    firstExample += examples.length;
}

/* The run */

let generation = 'none', next = 0, lines = [];

function takeRun(run) {
    if (run.generation !== generation || run.from !== next)
        lines = [];
    const news = run.lines.length > 0 || run.generation !== generation;
    generation = run.generation;
    next = run.next;
    lines.push(...run.lines);
    get('run').hidden = false;
    get('name').textContent = `${run.name}${run.done ? ', which has ended' : ''}`;
    if (news)
        showRun();
}

/* The last line that has a number there. */
function latest(key) {
    return lines.findLast(line => typeof line[key] === 'number')?.[key];
}

function show(id, value, text) {
    get(id).textContent = value === undefined ? '–' : text(value);
}

function showRun() {
    show('epoch', latest('epoch'), String);
    show('step', latest('step'), String);
    show('speed', latest('images_per_s'), value => Math.round(value).toLocaleString('en'));
    show('rate', latest('lr'), value => String(Number(value.toPrecision(3))));
    show('accuracy', latest('test_acc'), value => `${(100 * value).toFixed(2)} %`);
    show('validated', latest('val_acc'), value => `${(100 * value).toFixed(2)} %`);
    for (const element of document.querySelectorAll('.validation'))
        element.hidden = latest('val_acc') === undefined;
    drawChart(get('loss'), [curve('loss'), curve('test_loss'), curve('val_loss')], LOGARITHMIC);
    drawChart(get('acc'), [[], curve('test_acc'), curve('val_acc')], PERCENT);
}

/* [[step, value], ...]; of many points, means of neighbours. */
function curve(key) {
    const all = lines.filter(line => typeof line[key] === 'number')
        .map(line => [line.step, line[key]]);
    const every = Math.ceil(all.length / POINTS), points = [];
    for (let i = 0; i < all.length; i += every) {
        const part = all.slice(i, i + every);
        points.push([0, 1].map(axis => part.reduce((sum, p) => sum + p[axis], 0) / part.length));
    }
    return points;
}

/* What an axis does with values: where they lie on it, which are written, and how. */
const PERCENT = {place: value => value, ticks, write: value => `${+(100 * value).toFixed(2)} %`};
const LOGARITHMIC = {
    place: value => Math.log10(Math.max(value, 1e-6)),
    ticks: (low, high) => {
        const list = [];
        for (let power = Math.floor(low); power <= high; power++)
            list.push(...[1, 2, 5].map(factor => power + Math.log10(factor)));
        return list.filter(place => place >= low && place <= high);
    },
    write: place => String(Number((10 ** place).toPrecision(2))),
};

/* Round numbers from low to high, some five. */
function ticks(low, high) {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
    const list = [];
    const first = Math.ceil(low / step);
    for (let i = 0; i < 20 && (first + i) * step <= high + step / 1e6; i++)
        list.push(Number(((first + i) * step).toPrecision(12)));
    return list;
}

function svg(parent, tag, attributes, text) {
    const element = parent.appendChild(document.createElementNS('http://www.w3.org/2000/svg', tag));
    for (const [name, value] of Object.entries(attributes))
        element.setAttribute(name, value);
    element.textContent = text ?? '';
}

/* A span of some width around values. */
function span(values) {
    const low = Math.min(...values), high = Math.max(...values);
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

function drawChart(chart, series, axis) {
    const left = 62, right = 590, top = 8, bottom = 232, points = series.flat();
    chart.replaceChildren();
    if (points.length === 0) {
        svg(chart, 'text', {x: 300, y: 130, 'text-anchor': 'middle'}, 'nothing yet');
        return;
    }
    const [x0, x1] = span(points.map(p => p[0]));
    const [y0, y1] = span(points.map(p => axis.place(p[1])));
    const atX = x => left + (x - x0) / (x1 - x0) * (right - left);
    const atY = y => bottom - (y - y0) / (y1 - y0) * (bottom - top);
    const placed = ([x, y]) => `${atX(x)},${atY(axis.place(y))}`;
    for (const y of axis.ticks(y0, y1)) {
        svg(chart, 'line', {class: 'grid', x1: left, x2: right, y1: atY(y), y2: atY(y)});
        svg(chart, 'text', {x: left - 6, y: atY(y) + 5, 'text-anchor': 'end'}, axis.write(y));
    }
    for (const x of ticks(x0, x1))
        svg(chart, 'text', {x: atX(x), y: bottom + 20, 'text-anchor': 'middle'}, String(x));
    series.forEach((line, i) => {
        svg(chart, 'polyline', {class: `s${i}`, points: line.map(placed).join(' ')});
        if (i > 0)
            for (const [x, y] of line)
                svg(chart, 'circle', {class: `s${i}`, cx: atX(x), cy: atY(axis.place(y)), r: 3.5});
    });
}

/* The model and the run, once a second */

let loads = -1, examplesOf = null;

function lost() {
    get('model').textContent = 'The server does not answer. Is it still running?';
}

function takeModel(model) {
    if (!model) {
        get('model').textContent = 'There is no model yet: the run has not saved one.';
        return;
    }
    get('model').textContent = `${model.name}: ${model.kind} for ${model.dataset}` +
        (model.loads > 1 ? `, model ${model.loads} of this run` : '');
    if (String(classes) !== String(model.classes)) {
        classes = model.classes;
        makeBars();
    }
    if (loads >= 0 && model.loads !== loads)
        ask(); /* the new model looks at what is on the paper */
    loads = model.loads;
}

async function watch() {
    try {
        const {model, run, examples} = await (await fetch(`/watch/${generation}/${next}`)).json();
        takeModel(model);
        if (run)
            takeRun(run);
        get('examples').hidden = examples === 0;
        if (examples > 0 && model.dataset !== examplesOf) {
            examplesOf = model.dataset;
            firstExample = 0;
            await showExamples();
        }
        setTimeout(watch, run?.lines.length > 500 ? 0 : 1000); /* the rest of a long run at once */
    } catch {
        lost();
        setTimeout(watch, 2000);
    }
}

makeBars();
clearPaper();
paper.addEventListener('pointerdown', beginStroke);
paper.addEventListener('pointermove', event => last && drawTo(event));
paper.addEventListener('pointerup', endStroke);
paper.addEventListener('pointercancel', endStroke);
get('clear').addEventListener('click', clearPaper);
get('more').addEventListener('click', showExamples);
document.addEventListener('keydown', event => event.key === 'Escape' && clearPaper());
watch();
