'use strict';

/* Elements and charts are draw.js's, as in a report. */

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

function makeBars() {
    const bars = get('bars');
    bars.replaceChildren();
    bars.className = classes.some(name => name.length > 2) ? 'named' : '';
    for (const name of classes) {
        const bar = add(bars, 'div', {class: 'bar'});
        add(bar, 'span').textContent = name;
        add(add(bar, 'div', {class: 'track'}), 'div', {class: 'fill'});
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
    showChart('loss', 'Loss', 'log',
              {training: curve('loss'), test: curve('test_loss'), validation: curve('val_loss')});
    showChart('acc', 'Accuracy', 'percent',
              {training: [], test: curve('test_acc'), validation: curve('val_acc')});
}

/* `curves`: what has no points is not named. */
function showChart(id, title, kind, curves) {
    const series = Object.entries(curves).map(([name, points], i) => ({
        name, points, form: 'line', colour: `var(--c${i})`,
        marker: [undefined, 'circle', 'triangle'][i],
    })).filter(({points}) => points.length > 0);
    get(id).replaceChildren();
    drawChart(get(id), {title, series, y: {kind},
                        x: {kind: 'linear', label: 'steps', one: 'step'}});
    drawKey(get(id), series);
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
