for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("code");
  const select = () => getSelection().selectAllChildren(code);
  button.hidden = false;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      select();
      if (!document.execCommand("copy")) return;
    }
    button.textContent = "Copied";
    button.ariaLabel = "Copied";
    setTimeout(() => { button.textContent = "Copy"; button.ariaLabel = "Copy the command"; }, 2000);
  };
}
