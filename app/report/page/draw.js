'use strict';

/* What all pictures share: elements, axes, charts, values on hover, "Save as SVG". */

const SVG = 'http://www.w3.org/2000/svg';

/* Text of others: no control character of it counts. */
function clean(text) {
    return String(text ?? '').replace(/[\x00-\x08\x0b-\x1f\x7f]/g, '\ufffd');
}

function add(parent, tag, attributes = {}, text) {
    const isDrawn = tag === 'svg' || parent.namespaceURI === SVG;
    const element = isDrawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
        if (name === 'style')
            element.style.cssText = value; /* which serve's policy allows, too */
        else
            element.setAttribute(name, clean(value));
    if (text !== undefined)
        element.textContent = clean(text);
    parent.append(element);
    return element;
}

/* What may stand in data of others as anything. */
const known = value => typeof value === 'number' && Number.isFinite(value);
const list = value => Array.isArray(value) ? value : [];
const objects = value => list(value).filter(one => one !== null && typeof one === 'object');

function button(parent, text, act, attributes = {}) {
    const element = add(parent, 'button', {type: 'button', ...attributes}, text);
    element.addEventListener('click', act);
    return element;
}

/* A table with these heads: texts, or functions that fill one. Returns its body. */
function addTable(parent, heads, attributes = {}) {
    const table = add(add(parent, 'div', {class: 'wide'}), 'table', attributes);
    const row = add(add(table, 'thead'), 'tr');
    for (const head of heads)
        if (typeof head === 'function')
            head(add(row, 'th'));
        else
            add(row, 'th', {}, head);
    return add(table, 'tbody');
}

/* A part of a picture's key. */
function addKeyPart(key, colour, text) {
    const entry = add(key, 'span', {class: 'part'});
    if (colour)
        add(entry, 'span', {class: 'key', style: `background:${colour}`});
    entry.append(clean(text));
    key.append(' ');
}

/* Axes */

const FARTHEST = 1e300, SMALLEST = 1e-300; /* beyond these a distance may be no number */

function isDrawn(kind, value) {
    return typeof value === 'number' && Math.abs(value) <= FARTHEST &&
        (!kind.startsWith('log') || value >= SMALLEST);
}

/* Multiples of 1, 2 or 5 times a power of ten: about n of them from low to high. */
function roundTicks(low, high, n) {
    const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
    const times = rough / power, list = [];
    const step = power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
    for (let at = Math.ceil(low / step); at * step <= high && list.length < 2 * n + 2; at++)
        list.push(at * step + 0); /* never -0 */
    return list;
}

/* Of each decade 1, of many decades only some; 2 and 5 too if there are few. */
function logTicks(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.floor(Math.log10(high));
    const factors = Math.log10(high) - Math.log10(low) < 3 ? [1, 2, 5] : [1], list = [];
    for (let at = first; at <= last; at += Math.floor((last - first) / 10) + 1)
        list.push(...factors.map(factor => factor * Number(`1e${at}`)));
    return list.filter(value => value >= low && value <= high);
}

/* An axis over values, with some room, and never so short that doubles cannot part it. `kind`:
   linear, percent, log, or log2, which has a tick at each value. */
function makeAxis(kind, values, room) {
    const isLog = kind.startsWith('log'), place = isLog ? Math.log : value => value;
    let low = values.reduce((a, b) => Math.min(a, b));
    let high = values.reduce((a, b) => Math.max(a, b));
    const most = high, size = Math.max(Math.abs(low), Math.abs(high)), span = high - low;
    if (isLog) {
        const all = Math.log(high) - Math.log(low);
        const factor = Math.exp(all > 1e-9 ? all * room : Math.LN2);
        low = Math.max(low / factor, 2.3e-308);
        high = Math.min(high * factor, Number.MAX_VALUE);
    } else {
        const by = span > Math.max(size * 1e-9, SMALLEST) ? span * room
                                                          : Math.max(size * 0.1, 1e-9);
        low -= by;
        high += by;
    }
    if (kind === 'percent' && most <= 1)
        high = Math.min(high, 1); /* no share is more than all */
    const ticks = kind === 'log2' ? [...new Set(values)]
        : isLog ? logTicks(low, high) : roundTicks(low, high, 5);
    return {kind, low, high, ticks,
            share: value => (place(value) - place(low)) / (place(high) - place(low))};
}

function write(value, kind) {
    const size = Math.abs(value);
    if (kind === 'percent')
        return `${Number((100 * value).toPrecision(6))} %`;
    return size >= 1e6 ? `${Number((value / 1e6).toPrecision(4))}M`
        : size >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k`
        : String(Number(value.toPrecision(6)));
}

/* Charts. A chart is {title, name, x: {kind, label, zero}, y: {kind, label}, series, marks}; a
   series {name, colour, form, marker, points: [[x, y, low, high]]}: from low to high a value's
   interval. Forms: line, dashed, thin, dots. */

const WIDTH = 420, HEIGHT = 250, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 40;

const MARKERS = {
    circle: {glyph: '●', words: 'dots'},
    square: {glyph: '□', words: 'squares', path: 'M-3.2 -3.2h6.4v6.4h-6.4z', hollow: true},
    triangle: {glyph: '▲', words: 'triangles', path: 'M0 -4.2L4 3.2H-4z'},
    diamond: {glyph: '◆', words: 'diamonds', path: 'M0 -4.4L4.4 0L0 4.4L-4.4 0z'},
};

function addMarker(parent, name, x, y, colour, text) {
    const {path, hollow} = MARKERS[name];
    const style = hollow ? `fill:none;stroke:${colour};stroke-width:1.6` : `fill:${colour}`;
    const element = path
        ? add(parent, 'path', {d: path, transform: `translate(${x} ${y})`, style})
        : add(parent, 'circle', {cx: x, cy: y, r: 3, style});
    add(element, 'title', {}, text);
}

function addRows(svg, ticks, kind, atY) {
    for (const value of ticks) {
        add(svg, 'path', {class: 'grid', d: `M${LEFT} ${atY(value)}H${WIDTH - RIGHT}`});
        add(svg, 'text', {x: LEFT - 6, y: atY(value) + 4, 'text-anchor': 'end'},
            write(value, kind));
    }
}

function addColumns(svg, {ticks, kind}, atX) {
    for (const value of ticks) {
        add(svg, 'path', {class: 'grid', d: `M${atX(value)} ${TOP}V${HEIGHT - BOTTOM}`});
        add(svg, 'text', {x: atX(value), y: HEIGHT - BOTTOM + 16, 'text-anchor': 'middle'},
            write(value, kind));
    }
}

/* A gap in the values is one in the line. */
function addLine(svg, series, drawn, atX, atY) {
    let d = '', command = 'M';
    for (const point of series.points) {
        if (drawn(point))
            d += `${command}${atX(point[0])} ${atY(point[1])}`;
        command = drawn(point) ? 'L' : 'M';
    }
    const form = {dashed: ' dashed', thin: ' thin'}[series.form] ?? '';
    add(svg, 'path', {class: `line${form}`, style: `stroke:${series.colour}`, d});
}

/* A picture: what kind it is, its size in its own units, and what a reader is told of it. */
function addSvg(parent, kind, width, height, label, more = {}) {
    return add(parent, 'svg', {class: kind, viewBox: `0 0 ${width} ${height}`, role: 'img',
                               'aria-label': label, ...more});
}

function drawChart(figure, c) {
    const drawn = ([x, y]) => isDrawn(c.x.kind, x) && isDrawn(c.y.kind, y);
    const points = c.series.flatMap(series => series.points).filter(drawn);
    add(figure, 'h3', {}, c.title);
    if (points.length === 0) {
        add(figure, 'p', {}, 'no data');
        return;
    }
    const xAxis = makeAxis(c.x.kind, [...points.map(p => p[0]), ...c.x.zero ? [0] : []], 0.02);
    const ends = points.flatMap(([, y, low, high]) =>
        known(low) && known(high) ? [y, low, high] : [y]);
    const yAxis = makeAxis(c.y.kind, c.y.zero ? [...ends, 0] : ends, 0.05);
    const fixed = value => Number(value.toFixed(1));
    const atX = value => fixed(LEFT + xAxis.share(value) * (WIDTH - LEFT - RIGHT));
    const atY = value => fixed(HEIGHT - BOTTOM - yAxis.share(value) * (HEIGHT - TOP - BOTTOM));
    const svg = addSvg(figure, 'chart', WIDTH, HEIGHT, c.title), places = [];
    addRows(svg, yAxis.ticks, yAxis.kind, atY);
    addColumns(svg, xAxis, atX);
    for (const {at, text} of c.marks ?? [])
        if (at >= xAxis.low && at <= xAxis.high)
            add(add(svg, 'path', {class: 'mark', d: `M${atX(at)} ${TOP}V${HEIGHT - BOTTOM}`}),
                'title', {}, text);
    for (const series of c.series) {
        addLine(svg, series, drawn, atX, atY);
        for (const [x, y, low, high] of series.points.filter(drawn)) {
            const hasEnds = known(low) && known(high);
            const text = `${series.name}, ${c.x.one} ${write(x, '')}: ${write(y, c.y.kind)}` +
                (hasEnds ? ` (${write(low, c.y.kind)} to ${write(high, c.y.kind)})` : '');
            places.push({x: atX(x), y: atY(y), text});
            if (hasEnds)
                add(svg, 'path', {class: 'line', style: `stroke:${series.colour}`,
                                  d: `M${atX(x)} ${atY(low)}V${atY(high)}`});
            if (series.marker || series.points.length === 1)
                addMarker(svg, series.marker ?? 'circle', atX(x), atY(y), series.colour, text);
        }
    }
    add(svg, 'text', {x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, 'text-anchor': 'middle'},
        c.x.label);
    hover(svg, places);
    saveButton(figure, svg, c.name ?? c.title);
}

/* What is what, below a chart. */
function drawKey(figure, series) {
    const key = add(figure, 'p', {class: 'faint'});
    for (const {name, colour, form, marker} of series)
        addKeyPart(key, colour, `${marker ? `${MARKERS[marker].glyph} ` : ''}${name}` +
                                (form === 'dashed' ? ' (dashed)' : ''));
}

/* Bars of stacked parts: {title, labels, series: [{name, colour, values}]}. */
function drawBars(figure, c) {
    add(figure, 'h3', {}, c.title);
    const valueOf = (values, i) => isDrawn('linear', values[i]) ? values[i] : 0;
    const sums = c.labels.map((_, i) => c.series.reduce((sum, s) => sum + valueOf(s.values, i), 0));
    if (!sums.some(sum => sum > 0 && sum <= FARTHEST)) {
        add(figure, 'p', {}, 'no data');
        return;
    }
    const svg = addSvg(figure, 'chart', WIDTH, HEIGHT, c.title), bottom = HEIGHT - BOTTOM - 30;
    const axis = makeAxis('linear', [0, ...sums], 0.03);
    const room = (WIDTH - LEFT - RIGHT) / sums.length;
    const atY = value => bottom - value / axis.high * (bottom - TOP);
    addRows(svg, axis.ticks.filter(tick => tick >= 0), '', atY);
    c.labels.forEach((label, i) => {
        const x = LEFT + room * (i + 0.5);
        let below = 0;
        for (const {name, colour, values} of c.series) {
            const value = valueOf(values, i);
            const rect = add(svg, 'rect', {x: x - room * 0.35, width: room * 0.7, style:
                `fill:${colour}`, y: atY(below + value), height: atY(below) - atY(below + value)});
            add(rect, 'title', {}, `${label}, ${name}: ${write(value, '')} ${c.unit}`);
            below += value;
        }
        add(svg, 'text', {'text-anchor': 'end', transform:
            `translate(${x + 4} ${bottom + 14}) rotate(-30)`}, label);
    });
    saveButton(figure, svg, c.name ?? c.title);
}

/* What is next to the pointer says its value. `places`: [{x, y, text}] in the picture's units. */
function hover(svg, places) {
    let tip = null;
    document.querySelector('.tip')?.remove(); /* left by a picture that this one replaces */
    svg.addEventListener('pointermove', event => {
        const at = new DOMPoint(event.clientX, event.clientY)
            .matrixTransform(svg.getScreenCTM().inverse());
        const far = place => Math.hypot(place.x - at.x, place.y - at.y);
        const nearest = places.reduce((a, b) => far(b) < far(a) ? b : a);
        tip ??= add(document.body, 'div', {class: 'tip'});
        tip.textContent = clean(nearest.text);
        const isRight = event.clientX > innerWidth / 2;
        tip.style.left = isRight ? 'auto' : `${event.clientX + 14}px`;
        tip.style.right = isRight ? `${innerWidth - event.clientX + 14}px` : 'auto';
        tip.style.top = `${event.clientY + 14}px`;
    });
    svg.addEventListener('pointerleave', () => {
        tip?.remove();
        tip = null;
    });
}

/* The picture as a file of its own: with the styles that the page gives it. */
const KEPT = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-family',
              'font-size', 'font-weight'];

function svgText(svg) {
    const copy = svg.cloneNode(true), box = svg.getBoundingClientRect();
    const copies = [copy, ...copy.querySelectorAll('*')];
    [svg, ...svg.querySelectorAll('*')].forEach((element, i) => {
        const style = getComputedStyle(element);
        const all = KEPT.map(name => `${name}:${style.getPropertyValue(name)}`);
        copies[i].setAttribute('style', all.join(';'));
    });
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    copy.setAttribute('width', Math.round(box.width));
    copy.setAttribute('height', Math.round(box.height));
    return new XMLSerializer().serializeToString(copy);
}

function saveButton(parent, svg, name) {
    button(parent, 'Save as SVG', () => {
        const link = document.createElement('a');
        link.href = URL.createObjectURL(new Blob([svgText(svg)], {type: 'image/svg+xml'}));
        link.download = `${clean(name).replace(/[^\w.-]+/g, '-')}.svg`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }, {class: 'save'});
}
