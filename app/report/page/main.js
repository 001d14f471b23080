/* Documents of benchmarks (docs/bench-json.md), and what page is which. */

function addLines(parent, title, lines) {
    if (list(lines).length === 0)
        return;
    add(parent, 'h3', {}, title);
    const all = add(parent, 'ul');
    for (const line of lines)
        add(all, 'li', {}, line);
}

/* What was measured, when, by what, and on which machine. */
function addRecord(parent, {command, started, version, machine}) {
    const all = add(parent, 'dl');
    add(all, 'dt', {}, 'command');
    add(add(all, 'dd'), 'code', {}, command);
    for (const [name, value] of Object.entries({started, version, ...machine})) {
        add(all, 'dt', {}, name);
        add(all, 'dd', {}, textOf(value));
    }
}

function addReportTable(parent, {title, columns, rows}) {
    const isNumber = text => /^[-0-9]/.test(text);
    add(parent, 'h3', {}, title);
    const body = addTable(parent, list(columns));
    for (const {cells, note} of objects(rows)) {
        const row = add(body, 'tr', note ? {class: 'noted'} : {});
        list(columns).forEach((_, i) =>
            add(row, 'td', isNumber(cells?.[i]) ? {class: 'n'} : {}, cells?.[i]));
        if (note)
            add(add(body, 'tr', {class: 'note'}), 'td', {colspan: columns.length}, note);
    }
}

const COUNTED = ['linear', 'percent', 'log', 'log2'];

/* A plot of old, from gnuplot, has no data here. */
function addPlot(parent, plot) {
    const figure = add(parent, 'figure', {id: `plot-${plot.name}`}), all = objects(plot.series);
    const markers = Object.keys(MARKERS), kind = name => COUNTED.includes(name) ? name : 'linear';
    const c = {title: plot.caption, name: plot.name, unit: plot.y ?? ''};
    if (plot.labels !== undefined) {
        const series = all.filter(({name}) => Object.hasOwn(PHASES, name))
            .map(({name, points}) => ({name, values: list(points), colour: `var(--${name})`}));
        drawBars(figure, {...c, labels: list(plot.labels), series});
        drawKey(figure, series);
    } else {
        const series = all.map(({name, points, colour, dashed}, i) => {
            const number = Number.isInteger(colour) ? colour : i;
            return {name, points: list(points).filter(Array.isArray), colour: colourOf(number % 8),
                    form: dashed ? 'dashed' : 'line', marker: markers[number % markers.length]};
        });
        drawChart(figure, {...c, series,
                           y: {kind: kind(plot.y_axis), zero: plot.y_axis === undefined},
                           x: {kind: kind(plot.x_axis), label: plot.x, one: plot.x ?? ''}});
        drawKey(figure, series);
    }
    add(figure, 'figcaption', {}, plot.y);
}

function addDocument(main, document) {
    const section = add(main, 'section'), report = document.report;
    add(section, 'h2', {}, report.title);
    addRecord(section, document);
    addLines(section, 'Found', report.summary);
    const plots = add(section, 'div', {class: 'charts'});
    objects(report.plots).forEach(plot => addPlot(plots, plot));
    objects(report.tables).forEach(table => addReportTable(section, table));
    addLines(section, 'Notes', report.notes);
    addLines(section, 'What the figures do not say', report.limits);
}

const PAGES = {
    runs: runsPage,
    documents: (main, {documents}) => documents.forEach(one => addDocument(main, one)),
    demo: demoPage,
    trace: (main, {trace}) => drawTrace(main, trace, true),
};

const page = JSON.parse(document.getElementById('data').textContent);
PAGES[page.kind](document.querySelector('main'), page);
