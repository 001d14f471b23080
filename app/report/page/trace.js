"use strict";
// Zooms and moves the part of the time that is shown; names stand in spans that have room for them.
(() => {
    const picture = document.querySelector("svg.trace"), time = picture.querySelector("svg.time");
    const all = time.viewBox.baseVal.width, height = time.viewBox.baseVal.height;
    const left = Number(time.getAttribute("x")), width = Number(time.getAttribute("width"));
    const spans = [...time.querySelectorAll("rect")].map(rect => ({
        begin: Number(rect.getAttribute("x")), length: Number(rect.getAttribute("width")),
        y: Number(rect.getAttribute("y")), name: rect.textContent.split("\n")[0]}));
    const axis = document.createElement("div");
    axis.id = "axis";
    picture.before(axis);
    let from = 0, shown = all, waits = false;

    const clock = us => us >= 1e6 ? `${(us / 1e6).toFixed(3)} s` : `${(us / 1e3).toFixed(3)} ms`;
    const draw = () => {
        waits = false;
        time.setAttribute("viewBox", `${from} 0 ${shown} ${height}`);
        picture.querySelectorAll(".name").forEach(name => name.remove());
        for (const {begin, length, y, name} of spans) {
            const first = Math.max(0, (begin - from) / shown * width);
            const last = Math.min(width, (begin + length - from) / shown * width);
            if (last - first < 7 * name.length + 4)
                continue;
            const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
            text.setAttribute("class", "name");
            text.setAttribute("x", left + first + 3);
            text.setAttribute("y", y + 12);
            text.textContent = name;
            picture.append(text);
        }
        axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map(part => {
            const tick = document.createElement("span");
            tick.textContent = clock(from + shown * part);
            return tick;
        }));
    };
    const show = (begin, length) => {
        shown = Math.min(all, Math.max(1, length));
        from = Math.min(all - shown, Math.max(0, begin));
        if (!waits)
            requestAnimationFrame(draw);
        waits = true;
    };
    const at = event => { // microseconds under the mouse
        const box = picture.getBoundingClientRect();
        const x = (event.clientX - box.left) / box.width * 1200;
        return from + Math.max(0, Math.min(1, (x - left) / width)) * shown;
    };
    picture.addEventListener("wheel", event => {
        event.preventDefault();
        const factor = event.deltaY > 0 ? 1.25 : 0.8, centre = at(event);
        show(centre - (centre - from) * factor, shown * factor);
    }, {passive: false});
    let held = null;
    picture.addEventListener("pointerdown", event => { held = at(event); });
    addEventListener("pointerup", () => { held = null; });
    picture.addEventListener("pointermove", event => {
        if (held !== null)
            show(from + held - at(event), shown);
    });
    picture.addEventListener("dblclick", () => show(0, all));
    addEventListener("keydown", event => {
        const moves = {ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1], "+": [0.1, 0.8], "-": [-0.125, 1.25]};
        const [by, factor] = moves[event.key] ?? [0, 1];
        if (event.key in moves)
            show(from + by * shown, shown * factor);
    });
    draw();
})();
