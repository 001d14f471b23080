/* A demonstration, as `demo --json` prints it: one frame at a time. What goes from rank to rank
   moves between the ranks, which stand in a circle; chunks of a ring are blocks, and buckets fill
   and leave. */

const RING = 480, CHUNK_WIDTH = 64, CHUNK_HEIGHT = 17, PLAY_MS = 4000;

function addFrameTable(section, columns, rows) {
    if (rows.length === 0)
        return;
    const body = addTable(section, []);
    const addCells = (tag, cells, like) => {
        const row = add(body, 'tr');
        list(cells).forEach((cell, i) =>
            add(row, tag, typeof like?.[i] === 'string' ? {class: 'text'} : {},
                typeof cell === 'number' ? Number(cell.toPrecision(7)) : cell));
    };
    addCells('th', columns, rows[0]);
    for (const row of rows)
        addCells('td', row, row);
}

function addFrame(main, frame) {
    const section = add(main, 'section');
    add(section, 'h2', {}, frame.title);
    for (const text of list(frame.text))
        add(section, 'p', {}, text);
    add(section, 'div', {class: 'picture'});
    addFrameTable(section, list(frame.columns), list(frame.rows));
    for (const {from, to, label} of list(frame.arrows))
        add(section, 'p', {class: 'arrow', 'data-member': frame.member, 'data-from': from,
                           'data-to': to}, label);
    return section;
}

/* What each rank has of a ring's chunks, as text; null: the frame is of no ring. */
function chunksOf(frame) {
    const columns = list(frame?.columns);
    return columns.length > 1 && columns.slice(1).every((name, i) => name === `chunk ${i}`)
        ? list(frame.rows).map(row => row.slice(1).map(cell => String(cell).trim())) : null;
}

function addChunk(svg, chunk, text, x, y) {
    const group = add(svg, 'g', {class: 'chunk'});
    const rect = add(group, 'rect', {x: -CHUNK_WIDTH / 2, y: 0, width: CHUNK_WIDTH - 1,
                                     height: CHUNK_HEIGHT - 1,
                                     style: `fill:${colourOf(chunk % 8)}`});
    const label = add(group, 'text', {x: 0, y: CHUNK_HEIGHT - 5, 'text-anchor': 'middle'});
    const place = (atX, atY, isOver = false) => {
        group.setAttribute('transform', `translate(${atX} ${atY})`);
        group.setAttribute('visibility', isOver ? 'hidden' : 'visible');
    };
    const say = value => {
        label.textContent = value.replace('*', '');
        rect.classList.toggle('changed', value.includes('*'));
    };
    place(x, y);
    say(text);
    return {place, say};
}

/* Ranks in a circle, and what moves between them. Returns what shows a part, 0 to 1, of the way. */
function drawRanks(picture, frame, before, n) {
    const svg = addSvg(picture, 'ranks', RING, RING, frame.title);
    const chunks = chunksOf(frame), old = chunksOf(before) ?? chunks, radius = chunks ? 170 : 150;
    const at = rank => {
        const angle = 2 * Math.PI * rank / n - Math.PI / 2;
        return {x: RING / 2 + radius * Math.cos(angle), y: RING / 2 + radius * Math.sin(angle)};
    };
    const arrows = list(frame.arrows).filter(({from, to}) => known(from) && known(to));
    const ways = chunks ? digits.slice(0, n).map(from => ({from, to: (from + 1) % n})) : arrows;
    for (const {from, to} of ways)
        add(svg, 'path', {class: 'way', d: `M${at(from).x} ${at(from).y}L${at(to).x} ${at(to).y}`});
    const blocks = [];
    for (let rank = 0; rank < n; rank++) {
        const {x, y} = at(rank), top = y - (n * CHUNK_HEIGHT) / 2 + 8;
        if (!chunks) {
            add(svg, 'circle', {class: 'rank', cx: x, cy: y, r: 36});
            add(svg, 'text', {x, y: y + 4, 'text-anchor': 'middle'}, `${frame.member} ${rank}`);
            continue;
        }
        add(svg, 'rect', {class: 'rank', x: x - 40, y: top - 20, width: 80, rx: 5,
                          height: n * CHUNK_HEIGHT + 25});
        add(svg, 'text', {x, y: top - 6, 'text-anchor': 'middle'}, `${frame.member} ${rank}`);
        blocks[rank] = list(chunks[rank]).map((text, chunk) =>
            addChunk(svg, chunk, text, x, top + chunk * CHUNK_HEIGHT));
    }
    const packets = arrows.map(({from, to, label}) => {
        const chunk = Number(/^chunk (\d+)/.exec(label)?.[1] ?? NaN), a = at(from), b = at(to);
        const block = chunks && old[from]?.[chunk] !== undefined
            ? addChunk(svg, chunk, old[from][chunk].replace('*', ''), a.x, a.y) : null;
        const dot = block ? null : add(svg, 'circle', {class: 'packet', r: 8});
        return part => {
            const x = a.x + (b.x - a.x) * part, y = a.y + (b.y - a.y) * part;
            block?.place(x, y, part === 1); /* where the sum stands then */
            dot?.setAttribute('transform', `translate(${x} ${y})`);
        };
    });
    saveButton(picture, svg, frame.title);
    return part => {
        packets.forEach(move => move(part));
        blocks.forEach((own, rank) => own.forEach((block, chunk) =>
            block.say((part < 1 && arrows.length > 0 ? old : chunks)[rank]?.[chunk] ?? '')));
    };
}

/* A step's timeline: of rows "bucket 0" and "fc1 backward" when they begin and end. */
function spansOf(frame) {
    const columns = list(frame.columns);
    return columns[1] !== 'from' || columns[2] !== 'to' ? [] : list(frame.rows)
        .map(([name, from, to]) => ({name: String(name), from: Number(from), to: Number(to)}));
}

/* When a layer's gradients are there. A block of layers has one backward: "conv_block backward". */
function readyAt(spans, layer) {
    const all = spans.filter(span => span.name.endsWith(' backward'));
    const [kind] = /^[a-z]*/.exec(layer);
    return (all.find(span => span.name === `${layer} backward`) ??
            all.find(span => span.name.startsWith(`${kind}_`)))?.to ?? 0;
}

/* Buckets that fill while backward goes on, leave, and are with the other ranks. */
function drawBuckets(picture, frame, spans, buckets) {
    const end = Math.max(...spans.map(span => span.to));
    const tops = [], rowOf = bucket => String(bucket.tensors).split(', ').length;
    let height = 60;
    for (const bucket of buckets) {
        tops.push(height);
        height += rowOf(bucket) * CHUNK_HEIGHT + 22;
    }
    const svg = addSvg(picture, 'ranks', RING, height, frame.title);
    const clock = add(svg, 'text', {x: RING / 2, y: 20, 'text-anchor': 'middle'});
    const doing = add(svg, 'text', {x: RING / 2, y: 38, 'text-anchor': 'middle'});
    for (const [x, name] of [[90, 'rank 0'], [RING - 90, 'the other ranks']])
        add(svg, 'text', {x, y: 50, 'text-anchor': 'middle'}, name);
    const moves = buckets.map((bucket, i) => {
        const group = add(svg, 'g'), sent = spans.find(span => span.name === `bucket ${i}`);
        add(group, 'rect', {class: 'rank', x: -75, width: 150, y: tops[i], rx: 4,
                            height: rowOf(bucket) * CHUNK_HEIGHT + 6});
        const tensors = String(bucket.tensors).split(', ').map((name, row) => {
            const y = tops[i] + 3 + row * CHUNK_HEIGHT, layer = name.split('.')[0];
            const ready = readyAt(spans, layer);
            const rect = add(group, 'rect', {x: -72, width: 144, y, height: CHUNK_HEIGHT - 1,
                                             style: 'fill:var(--backward)'});
            add(group, 'text', {class: 'tensor', x: 0, y: y + 12, 'text-anchor': 'middle'}, name);
            return ms => rect.setAttribute('opacity', ms >= ready ? 1 : 0.15);
        });
        return ms => {
            const part = sent ? (ms - sent.from) / (sent.to - sent.from) : 0;
            const way = Math.max(0, Math.min(1, part));
            group.setAttribute('transform', `translate(${90 + way * (RING - 180)} 0)`);
            tensors.forEach(fill => fill(ms));
        };
    });
    saveButton(picture, svg, frame.title);
    return part => {
        const ms = part * end, now = spans.filter(span => span.from <= ms && ms < span.to &&
                                                  !span.name.startsWith('bucket'));
        clock.textContent = `${ms.toFixed(2)} ms of a step of ${end.toFixed(2)} ms`;
        doing.textContent = clean(now.length > 0 ? `rank 0: ${now.at(-1).name}` : '');
        moves.forEach(move => move(ms));
    };
}

/* Returns what moves the frame's picture, and for how long it goes; null: it has none. */
function drawFrame(picture, frame, before, demo) {
    const spans = spansOf(frame), buckets = list(demo.facts?.buckets);
    const ends = list(frame.arrows).flatMap(({from, to}) => [from, to]).filter(known);
    const n = Math.max(demo.world_size, ...ends.map(end => end + 1));
    if (spans.some(span => span.name.startsWith('bucket')) && buckets.length > 0)
        return {show: drawBuckets(picture, frame, spans, buckets), ms: 6000};
    return n > 1 && n <= 64 && (ends.length > 0 || chunksOf(frame))
        ? {show: drawRanks(picture, frame, before, n), ms: 1400} : null;
}

/* Again and again, with a rest at the end. Who wants less motion sees where it ends. */
function animate({show, ms}, isCurrent) {
    const start = performance.now(), REST_MS = 900;
    if (matchMedia('(prefers-reduced-motion: reduce)').matches)
        return show(1);
    const move = now => {
        if (!isCurrent())
            return;
        show(Math.min(1, Math.max(0, now - start) % (ms + REST_MS) / ms));
        requestAnimationFrame(move);
    };
    show(0);
    requestAnimationFrame(move);
}

function demoPage(main, {demo}) {
    const nav = add(main, 'nav'), frames = list(demo.frames);
    const sections = frames.map(frame => addFrame(add(main, 'div', {class: 'frames'}), frame));
    let shown = 0, timer = null, ticket = 0;
    const show = index => {
        shown = Math.max(0, Math.min(frames.length - 1, index));
        const mine = ++ticket;
        sections.forEach((section, i) => {
            section.hidden = i !== shown;
            section.querySelector('.picture').replaceChildren();
        });
        const motion = drawFrame(sections[shown].querySelector('.picture'), frames[shown],
                                 frames[shown - 1], demo);
        if (motion)
            animate(motion, () => mine === ticket);
        where.textContent = `${shown + 1} of ${frames.length}`;
        if (shown === frames.length - 1)
            stop();
    };
    const stop = () => {
        clearInterval(timer);
        timer = null;
        play.textContent = 'Play';
    };
    const turn = by => {
        stop();
        show(shown + by);
    };
    button(nav, 'Back', () => turn(-1));
    const play = button(nav, 'Play', () => {
        if (timer !== null)
            return stop();
        if (shown === frames.length - 1)
            show(0);
        play.textContent = 'Pause';
        timer = setInterval(() => show(shown + 1), PLAY_MS);
    });
    button(nav, 'Next', () => turn(1));
    const where = add(nav, 'span');
    addEventListener('keydown', event => {
        if (event.key === 'ArrowRight' || (event.key === ' ' && event.target === document.body)) {
            turn(1);
            event.preventDefault();
        }
        if (event.key === 'ArrowLeft')
            turn(-1);
    });
    show(0);
}
