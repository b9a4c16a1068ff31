// The copy button of a block with `$` copies its commands: without the `$`, and without what they print.
function commandsIn(text) {
  const commands = [];
  let continues = false;
  for (const line of text.split("\n")) {
    if (continues) commands.push(line);
    else if (line.startsWith("$ ")) commands.push(line.slice(2));
    else continue;
    continues = line.endsWith("\\");
  }
  return commands.join("\n");
}

document$.subscribe(() => {
  for (const button of document.querySelectorAll("[data-clipboard-target]")) {
    const block = document.querySelector(button.dataset.clipboardTarget);
    const commands = block ? commandsIn(block.textContent) : "";
    if (commands) button.dataset.clipboardText = commands;
  }
});
