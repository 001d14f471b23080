/* Tells the page around what is wrong with how this one looks, each frame of a demo: it is wider
   than its window, or a text has less contrast than 4.5 (WCAG 2, AA) to what is below it. */
const rgba = colour => (colour.match(/[\d.e-]+/g) ?? [0, 0, 0, 0]).map(Number);
const mix = ([r, g, b, a = 1], below, part = 1) =>
    [r, g, b].map((c, i) => c * a * part + below[i] * (1 - a * part));
const light = colour => colour.map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0.05);
const under = e => e === null ? [255, 255, 255]
    : mix(rgba(getComputedStyle(e).backgroundColor), under(e.parentElement));

/* Below a text in a picture are the shapes that were drawn before it where it stands. */
const shapes = text => [...text.closest('svg')?.querySelectorAll('rect, circle') ?? []];
function ground(text) {
    const {x, y, width, height} = text.getBoundingClientRect();
    return shapes(text).filter(shape => {
        const box = shape.getBoundingClientRect();
        return Math.abs(box.x + box.width / 2 - x - width / 2) <= box.width / 2 &&
            Math.abs(box.y + box.height / 2 - y - height / 2) <= box.height / 2 &&
            shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
    }).map(shape => getComputedStyle(shape)).filter(style => style.visibility === 'visible').reduce(
        (below, style) => mix(rgba(style.fill), below, style.opacity * style.fillOpacity),
        under(text));
}

function look() {
    const root = document.documentElement;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const wrong = root.scrollWidth > root.clientWidth ? ['wide'] : [];
    for (let node; (node = texts.nextNode()) !== null;) {
        const e = node.parentElement, style = getComputedStyle(e), below = ground(e);
        const ink = mix(rgba(e.closest('svg') ? style.fill : style.color), below, style.opacity);
        const [low, high] = [light(below), light(ink)].sort((a, b) => a - b);
        if (node.data.trim() !== '' && e.getClientRects().length > 0 &&
            style.visibility === 'visible' && !(high / low >= 4.5))
            wrong.push(`${(high / low).toFixed(1)} "${node.data.slice(0, 30)}"`);
    }
    return wrong;
}

const wrong = look(), next = [...document.querySelectorAll('nav button')]
    .find(button => button.textContent === 'Next' || button.id === 'all');
for (let i = 1; next && i < (page.demo?.frames.length ?? 2); i++, wrong.push(...look()))
    next.click();
parent.postMessage(`${innerWidth} ${light(under(document.body)) > 0.5 ? 'light' : 'dark'} ` +
    `${document.title}: ${wrong.slice(0, 6).join('; ') || 'fine'}`, '*');
