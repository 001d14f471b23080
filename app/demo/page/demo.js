"use strict";
// One frame at a time; its arrows move between the ranks, which stand in a circle.
(() => {
    const main = document.querySelector("main");
    const frames = [...main.querySelectorAll("section")];
    const ends = [...main.querySelectorAll(".arrow")].flatMap(
        ({dataset}) => [Number(dataset.from), Number(dataset.to)]);
    const ranks = Math.max(Number(main.dataset.ranks), ...ends.map(end => end + 1));
    const size = 360, radius = 130, svgNS = "http://www.w3.org/2000/svg";
    let shown = 0, timer = null, ticket = 0;

    const place = rank => {
        const angle = 2 * Math.PI * rank / ranks - Math.PI / 2;
        return {x: size / 2 + radius * Math.cos(angle), y: size / 2 + radius * Math.sin(angle)};
    };
    const make = (parent, name, attributes) => {
        const element = document.createElementNS(svgNS, name);
        for (const [key, value] of Object.entries(attributes))
            element.setAttribute(key, value);
        parent.append(element);
        return element;
    };

    // The ranks, and a packet on each way. They move for a second, again and again.
    const draw = section => {
        const arrows = [...section.querySelectorAll(".arrow")];
        if (arrows.length === 0 || ranks < 2)
            return;
        const svg = document.createElementNS(svgNS, "svg");
        svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
        svg.setAttribute("width", size);
        svg.setAttribute("role", "img");
        const packets = [];
        for (const arrow of arrows) {
            const from = place(Number(arrow.dataset.from)), to = place(Number(arrow.dataset.to));
            make(svg, "line", {class: "way", x1: from.x, y1: from.y, x2: to.x, y2: to.y});
            packets.push({from, to});
        }
        for (let rank = 0; rank < ranks; rank++) {
            const at = place(rank);
            make(svg, "circle", {class: "rank", cx: at.x, cy: at.y, r: 34});
            make(svg, "text", {x: at.x, y: at.y}).textContent = `${arrows[0].dataset.member} ${rank}`;
        }
        for (const packet of packets)
            packet.dot = make(svg, "circle", {class: "packet", r: 8});
        section.insertBefore(svg, section.querySelector("table, .arrow"));
        const mine = ++ticket, start = performance.now();
        const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
        const move = now => {
            const part = still ? 0.5 : Math.min(1, (now - start) % 1800 / 1200);
            for (const {from, to, dot} of packets) {
                dot.setAttribute("cx", from.x + (to.x - from.x) * part);
                dot.setAttribute("cy", from.y + (to.y - from.y) * part);
            }
            if (mine === ticket && !still)
                requestAnimationFrame(move);
        };
        requestAnimationFrame(move);
    };

    const nav = document.createElement("nav");
    const button = (label, act) => {
        const element = document.createElement("button");
        element.textContent = label;
        element.addEventListener("click", act);
        nav.append(element);
        return element;
    };
    const where = document.createElement("span");

    const show = index => {
        shown = Math.max(0, Math.min(frames.length - 1, index));
        ticket++;
        frames.forEach((frame, i) => {
            frame.hidden = i !== shown;
            frame.querySelector("svg")?.remove();
        });
        draw(frames[shown]);
        where.textContent = `${shown + 1} of ${frames.length}`;
        if (shown === frames.length - 1)
            stop();
    };
    const stop = () => {
        clearInterval(timer);
        timer = null;
        play.textContent = "Play";
    };
    button("Back", () => { stop(); show(shown - 1); });
    const play = button("Play", () => {
        if (timer !== null)
            return stop();
        if (shown === frames.length - 1)
            show(0);
        play.textContent = "Pause";
        timer = setInterval(() => show(shown + 1), 4000);
    });
    button("Next", () => { stop(); show(shown + 1); });
    nav.append(where);
    main.before(nav);
    addEventListener("keydown", event => {
        if (event.key === "ArrowRight" || event.key === " ") { stop(); show(shown + 1); event.preventDefault(); }
        if (event.key === "ArrowLeft") { stop(); show(shown - 1); }
    });
    show(0);
})();
