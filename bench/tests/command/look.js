// Looks at a report as a reader does, and writes what is wrong with it into a last element of the page, a complaint a line.
"use strict";

const LEAST_CONTRAST = 4.5; // WCAG 2, level AA, for texts
const LEAST_PIXELS = 9;

const complaints = [];

const parts = colour => colour.match(/[\d.]+/g).map(Number);

// Relative luminance as WCAG defines it.
function luminance(colour) {
    const [red, green, blue] = colour.slice(0, 3).map(part => {
        const share = part / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
}

// The colour that an element stands on.
function paper(element) {
    for (; element; element = element.parentElement) {
        const colour = parts(getComputedStyle(element).backgroundColor);
        if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
}

function look_at_text(text) {
    const element = text.parentElement, svg = element.closest("svg"), style = getComputedStyle(element);
    const complain = what => complaints.push(`${what}: "${text.data.trim().slice(0, 60)}"`);
    const ratio = contrast(parts(svg ? style.fill : style.color), paper(svg ? svg.parentElement : element));
    if (ratio < LEAST_CONTRAST) complain(`contrast ${ratio.toFixed(2)}`);
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const pixels = parseFloat(style.fontSize) * scale;
    if (pixels < LEAST_PIXELS) complain(`${pixels.toFixed(1)} px high`);
    if (svg) {
        const box = element.getBoundingClientRect(), frame = svg.getBoundingClientRect();
        const inside = box.left > frame.left - 1 && box.right < frame.right + 1 && box.top > frame.top - 1 && box.bottom < frame.bottom + 1;
        if (!inside) complain("cut off");
    }
}

function look_at_texts() {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let looked_at = 0;
    while (texts.nextNode()) {
        const text = texts.currentNode, element = text.parentElement;
        const shown = element.getClientRects().length > 0 && !element.closest("title, script, .skip");
        if (!shown || !text.data.trim()) continue;
        look_at_text(text);
        looked_at += 1;
    }
    return looked_at;
}

// The first comparison's column is seen without scrolling, and no part of the page makes all of it wider than the window.
function look_at_widths() {
    const name = document.querySelector("#comparisons summary").textContent;
    const title = [...document.querySelectorAll("#figures th")].find(title => title.textContent === name);
    if (title.getBoundingClientRect().right > innerWidth) complaints.push(`column "${name}" is out of sight`);
    const width = document.documentElement.scrollWidth;
    if (width > innerWidth + 1) complaints.push(`the page is ${width} px wide in a window of ${innerWidth}`);
}

addEventListener("load", () => {
    look_at_widths();
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    const looked_at = look_at_texts();
    const found = document.createElement("pre");
    found.id = "found";
    found.textContent = [`${looked_at} texts`, ...complaints].join("\n");
    document.body.append(found);
});
