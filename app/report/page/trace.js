/* A trace (app/trace/run_trace.h): for every rank a lane for each thread, and in it what the thread
   did when. Opens on one step of all ranks. */

const ROW = 18, LETTER = 7, LANE_NAME = 16, LANE_GAP = 6, AXIS = 34, FIRST_STEP = 4;
const ROUNDING_US = 0.002; /* the file has three decimals */

/* What stands in a span's name says which phase it is. */
const KINDS = [['forward', 'forward'], ['backward', 'backward'], ['loss', 'backward'],
               ['wait', 'waiting'], ['barrier', 'waiting'], ['all_reduce', 'reduce'],
               ['broadcast', 'broadcast'], ['reduce', 'reduce'], ['gather', 'gather'],
               ['scatter', 'scatter'], ['send', 'reduce'], ['recv', 'reduce'],
               ['optimizer', 'optimizer'], ['data', 'data']];
const SENT = ['reduce', 'broadcast', 'gather', 'scatter'], DARK = ['forward', 'broadcast', 'accelerator'];
const kindOf = name => KINDS.find(([part]) => name.includes(part))?.[1] ?? 'other';

/* Each lane with its spans, and how deep each lies inside others: a lane's spans stand in the order
   of their beginnings, outer ones first. */
function readLanes(events) {
    const lanes = [], at = new Map();
    for (const event of events)
        if (event?.name === 'thread_name') {
            const lane = {rank: event.pid, name: clean(event.args?.name), spans: [], depth: 1};
            lanes.push(lane);
            at.set(`${event.pid} ${event.tid}`, lane);
        }
    const open = new Map(lanes.map(lane => [lane, []]));
    for (const event of events) {
        const lane = event?.ph === 'X' ? at.get(`${event.pid} ${event.tid}`) : undefined;
        if (lane === undefined || !known(event.ts) || !known(event.dur))
            continue;
        const ends = open.get(lane), name = clean(event.name), kind = kindOf(name);
        while (ends.length > 0 && ends.at(-1) <= event.ts + ROUNDING_US)
            ends.pop();
        const span = {begin: event.ts, end: event.ts + event.dur, name, kind, depth: ends.length,
                      args: event.args};
        lane.spans.push(span);
        ends.push(span.end);
        lane.depth = Math.max(lane.depth, ends.length);
    }
    return lanes;
}

/* [{number, begin, end}]: of the same step of all ranks, from its first begin to its last end. */
function readSteps(lanes) {
    const steps = new Map();
    for (const lane of lanes)
        lane.spans.filter(span => span.name === 'step').forEach((span, i) => {
            const number = known(span.args?.step) ? span.args.step : i + 1;
            const step = steps.get(number) ?? {number, begin: Infinity, end: 0};
            steps.set(number, {number, begin: Math.min(step.begin, span.begin),
                               end: Math.max(step.end, span.end)});
        });
    return [...steps.values()].sort((a, b) => a.begin - b.begin);
}

/* What a rank sends while its backward goes on: the time that overlap hides. */
function readOverlaps(lanes) {
    return lanes.flatMap(lane => lane.spans.filter(span => span.name === 'backward').flatMap(
        ({begin, end}) => lanes.filter(other => other.rank === lane.rank && other !== lane)
            .flatMap(other => other.spans)
            .filter(span => SENT.includes(span.kind) && span.begin < end && span.end > begin)
            .map(span => ({rank: lane.rank, begin: Math.max(begin, span.begin),
                           end: Math.min(end, span.end)}))));
}

/* "all_reduce bucket 0", its time, and what else the trace knows of it. */
function spanText(span) {
    const more = Object.entries(span.args ?? {}).filter(([, value]) => typeof value !== 'object')
        .map(([key, value]) => `\n${key}: ${value}`);
    return `${span.name}\n${((span.end - span.begin) / 1e3).toFixed(3)} ms${more.join('')}`;
}

/* The part of a trace that is shown: microseconds `from` and `length`. */
class TraceView {
    constructor(svg, events) {
        this.svg = svg;
        this.lanes = readLanes(events);
        this.steps = readSteps(this.lanes);
        this.overlaps = readOverlaps(this.lanes);
        this.all = this.lanes.flatMap(lane => lane.spans)
            .reduce((end, span) => Math.max(end, span.end), 1);
        this.height = this.lanes.reduce((y, lane) => {
            lane.top = y + LANE_NAME;
            return lane.top + lane.depth * ROW + LANE_GAP;
        }, AXIS);
        this.from = 0;
        this.length = this.all;
        this.isDue = false;
    }

    show(from, length) {
        this.length = Math.min(this.all, Math.max(1, length));
        this.from = Math.min(this.all - this.length, Math.max(0, from));
        if (!this.isDue)
            requestAnimationFrame(() => this.draw());
        this.isDue = true;
    }

    showStep(index) {
        const step = this.steps[Math.max(0, Math.min(this.steps.length - 1, index))];
        if (step === undefined)
            return this.show(0, this.all);
        const room = (step.end - step.begin) * 0.02;
        this.show(step.begin - room, step.end - step.begin + 2 * room);
    }

    /* The step in the middle. */
    current() {
        const middle = this.from + this.length / 2;
        return Math.max(0, this.steps.findLastIndex(step => step.begin <= middle));
    }

    zoom(factor, centre) {
        this.show(centre - (centre - this.from) * factor, this.length * factor);
    }

    atX(us) {
        const x = (us - this.from) / this.length * this.width;
        return Number(Math.min(this.width, Math.max(0, x)).toFixed(2));
    }

    isIn({begin, end}) {
        return begin < this.from + this.length && end > this.from;
    }

    draw() {
        this.isDue = false;
        this.width = Math.max(200, this.svg.parentNode.clientWidth);
        this.svg.setAttribute('viewBox', `0 0 ${this.width} ${this.height}`);
        this.svg.replaceChildren();
        this.drawAxis();
        this.drawOverlaps();
        for (const lane of this.lanes) {
            add(this.svg, 'text', {class: 'lane', x: 0, y: lane.top - 4},
                `rank ${lane.rank}, ${lane.name}`);
            for (const span of lane.spans)
                if (this.isIn(span))
                    this.drawSpan(span, lane.top + span.depth * ROW);
        }
    }

    /* Round times in one unit, and the numbers of the steps. */
    drawAxis() {
        const [unit, us] = this.length >= 2e6 ? ['s', 1e6] : this.length >= 2e3 ? ['ms', 1e3]
                                                                                  : ['µs', 1];
        const ticks = roundTicks(this.from / us, (this.from + this.length) / us,
                                 Math.max(2, Math.floor(this.width / 130)));
        ticks.forEach(value => {
            const x = this.atX(value * us), isLast = x > this.width - 60;
            add(this.svg, 'path', {class: 'grid', d: `M${x} 14V${this.height}`});
            add(this.svg, 'text',
                {class: 'tick', x, y: 12, 'text-anchor': isLast ? 'end' : 'start'},
                `${write(Number(value.toPrecision(9)), '')} ${unit}`);
        });
        let free = 0; /* from here on no number stands */
        for (const {number, begin} of this.steps) {
            if (begin < this.from || begin > this.from + this.length)
                continue;
            const x = this.atX(begin);
            add(this.svg, 'path', {class: 'mark', d: `M${x} 16V${this.height}`});
            if (x < free)
                continue;
            add(this.svg, 'text', {class: 'step', x: x + 3, y: AXIS - 6}, `step ${number}`);
            free = x + 70;
        }
    }

    drawOverlaps() {
        for (const overlap of this.overlaps.filter(one => this.isIn(one))) {
            const own = this.lanes.filter(lane => lane.rank === overlap.rank);
            const x = this.atX(overlap.begin), end = this.atX(overlap.end);
            const bottom = own.at(-1).top + own.at(-1).depth * ROW;
            const d = `M${x} ${own[0].top}H${end}V${bottom}H${x}z`;
            add(this.svg, 'path', {class: 'overlap', d});
        }
    }

    drawSpan(span, y) {
        const x = this.atX(span.begin), width = Number((this.atX(span.end) - x).toFixed(2));
        const rect = add(this.svg, 'rect', {class: span.kind, x, y, width, height: ROW - 2,
                                            style: `fill:var(--${span.kind})`});
        add(rect, 'title', {}, spanText(span));
        if (width > LETTER * span.name.length + 4)
            add(this.svg, 'text', {class: DARK.includes(span.kind) ? 'name light' : 'name', x: x + 3,
                                   y: y + ROW - 6}, span.name);
    }
}

/* The pointer drags; the wheel zooms, on a page of its own without Ctrl, too. */
function followPointer(view, isAlone) {
    const svg = view.svg;
    const at = event => { /* microseconds below the pointer */
        const box = svg.getBoundingClientRect();
        return view.from + (event.clientX - box.left) / box.width * view.length;
    };
    let held = null;
    svg.addEventListener('wheel', event => {
        if (!isAlone && !event.ctrlKey)
            return;
        event.preventDefault();
        view.zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
    }, {passive: false});
    svg.addEventListener('pointerdown', event => { held = at(event); });
    addEventListener('pointerup', () => { held = null; });
    svg.addEventListener('pointermove', event => {
        if (held !== null)
            view.show(view.from + held - at(event), view.length);
    });
    svg.addEventListener('dblclick', () => view.show(0, view.all));
}

function followKeys(view) {
    const moves = {ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1],
                   '+': [0.1, 0.8], '-': [-0.125, 1.25]};
    addEventListener('keydown', ({key}) => {
        if (Object.hasOwn(moves, key)) {
            const [by, factor] = moves[key];
            view.show(view.from + by * view.length, view.length * factor);
        }
    });
}

function drawTrace(main, events, isAlone) {
    const nav = add(main, 'nav'), figure = add(main, 'figure');
    const svg = addSvg(figure, 'trace', 1, 1, 'what every rank did when');
    const view = new TraceView(svg, list(events)), middle = () => view.from + view.length / 2;
    button(nav, 'Step before', () => view.showStep(view.current() - 1));
    button(nav, 'Step after', () => view.showStep(view.current() + 1));
    button(nav, 'Closer', () => view.zoom(0.5, middle()));
    button(nav, 'Farther', () => view.zoom(2, middle()));
    button(nav, 'All', () => view.show(0, view.all), {id: 'all'});
    const key = add(figure, 'p', {class: 'faint'});
    const shown = new Set(view.lanes.flatMap(lane => lane.spans.map(span => span.kind)));
    for (const [name, words] of [...Object.keys(PHASES).map(phase => [phase, phase]),
                                 ['other', 'anything else']])
        if (shown.has(name))
            addKeyPart(key, `var(--${name})`, words);
    if (view.overlaps.length > 0)
        key.append('Shaded: sent while backward goes on. ');
    key.append('Under the pointer a span says its time, and what it moved. ' +
               `${isAlone ? 'The wheel zooms' : 'Ctrl and the wheel zoom'}, the pointer moves, a ` +
               'double click shows all. Times are from the trace\'s beginning.');
    saveButton(figure, svg, 'trace');
    followPointer(view, isAlone);
    if (isAlone)
        followKeys(view);
    new ResizeObserver(() => view.show(view.from, view.length)).observe(figure);
    view.showStep(FIRST_STEP);
    view.draw();
}
