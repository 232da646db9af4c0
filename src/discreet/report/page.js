"use strict";
for (const chart of document.querySelectorAll("svg.chart")) {
  const dots = [...chart.querySelectorAll("circle.dot")].map((mark) => {
    const title = mark.querySelector("title");
    const text = title.textContent;
    title.remove(); // the browser's own hint would stand beside ours
    return { mark, text, x: mark.cx.baseVal.value, y: mark.cy.baseVal.value };
  });
  dots.sort((a, b) => a.x - b.x);
  let tip = null;
  let shown = -1;
  const hide = () => {
    if (shown >= 0) dots[shown].mark.classList.remove("on");
    if (tip) tip.remove();
    tip = null;
    shown = -1;
  };
  const show = (index) => {
    hide();
    const { mark, text } = dots[index];
    mark.classList.add("on");
    tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("role", "status");
    tip.textContent = text;
    const figure = chart.parentElement;
    figure.append(tip);
    const frame = figure.getBoundingClientRect();
    const place = mark.getBoundingClientRect();
    const half = tip.offsetWidth / 2;
    const middle = place.left + place.width / 2 - frame.left;
    tip.style.left = Math.max(half, Math.min(frame.width - half, middle)) + "px";
    tip.style.top = place.top - frame.top + "px";
    shown = index;
  };
  const nearest = (event) => {
    if (!dots.length) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = 0;
    let least = Infinity;
    dots.forEach((dot, index) => {
      const far = Math.hypot(dot.x - at.x, (dot.y - at.y) / 2);
      if (far < least) [best, least] = [index, far];
    });
    show(best);
  };
  chart.addEventListener("pointermove", nearest);
  chart.addEventListener("pointerdown", nearest);
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || !dots.length) return;
    event.preventDefault();
    show(Math.max(0, Math.min(dots.length - 1, shown + move)));
  });
}
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
