package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tendril.dev/lib/bus/bustest"
)

// ends waits for the end and gives the exit code and all that was said.
func (p *program) ends(t *testing.T) (code int, said string) {
	t.Helper()
	var out strings.Builder
	for p.lines.Scan() {
		out.WriteString(p.lines.Text() + "\n")
	}
	err := p.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, out.String() + p.stderr.String()
}

// TestMovingSaysWhatIsWrong: each failure is one sentence, and the exit code is for scripts.
func TestMovingSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	events := filepath.Join(dir, "events.jsonl")
	if err := os.WriteFile(events, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere, empty := []string{"NGIT_NATS_URL=nats://127.0.0.1:1"}, []string{"NGIT_NATS_URL=" + bustest.New(t).URL}
	for _, c := range []struct {
		env  []string
		args string
		code int
		want string
	}{
		{nowhere, "export", 1, "no NATS server answers at nats://127.0.0.1:1"},
		{empty, "export -o out.jsonl", 1, "has no streams of Tendril: none has run with it"},
		{empty, "export --git copies", 1, `NGIT_GIT_DATA_PATH is "./data/git": list repositories: open`},
		{empty, "export --from https://x", 1, "want --git too"},
		{empty, "export --git x --from x", 1, `--from is "x"; want the http(s) URL of the server`},
		{nowhere, "import events.jsonl", 1, "no NATS server answers"},
		{empty, "import events.jsonl", 1, "has no streams of Tendril"},
		{empty, "import none.jsonl", 1, "open none.jsonl: no such file"},
		{empty, "import https://relay.example.com", 1, "https://relay.example.com is no URL of a relay, and no file; want ws:// or wss://"},
		{empty, "import events.jsonl --refused ./events.jsonl", 1, `--refused is "./events.jsonl", which is the file that is read`},
		{empty, "import events.jsonl --git none", 1, "/none: no such file"},
		{empty, "import events.jsonl --server x", 1, `--server is "x"; want the http(s) URL of the server`},
		{nil, "check", 2, "could not check: NGIT_DOMAIN is not set"},
		{domain, "check", 2, `could not check: NGIT_RELAY_DATA_PATH is "./data/relay": there is no log in it`},
		{append(slices.Clone(domain), nowhere...), "check", 2, "could not check: no NATS server answers"},
	} {
		code, said := start(t, dir, c.env, strings.Fields(c.args)...).ends(t)
		if code != c.code || !strings.Contains(said, c.want) || strings.Count(strings.TrimSpace(said), "\n") > 0 {
			t.Errorf("tendril %s: exit code %d, want %d and %q:\n%s", c.args, code, c.code, c.want, said)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if content, err := os.ReadFile(events); err != nil || string(content) != "{}\n" {
		t.Errorf("the file that was read is %q now, %v", content, err)
	}
}

// TestMovingWithAPassword: export and import of a system whose NATS has a password.
func TestMovingWithAPassword(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	up := start(t, dir, append(slices.Clone(domain), "NGIT_NATS_PASSWORD=hunter2"), "up")
	up.line(t, "listening on ")
	url, _, _ := strings.Cut(up.line(t, "  NATS     "), " ")
	here := []string{"NGIT_NATS_LISTEN=" + strings.TrimPrefix(url, "nats://"), "NGIT_NATS_PASSWORD=hunter2"}
	events := filepath.Join(dir, "events.jsonl")
	if err := os.WriteFile(events, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // once more into the same file
		code, said := start(t, dir, here, "import", "events.jsonl", "--refused", "refused.jsonl").ends(t)
		if code != 0 || !strings.Contains(said, "1  lines read") || !strings.Contains(said, "1  refused, see refused.jsonl") {
			t.Errorf("import: %d\n%s", code, said)
		}
		if why, err := os.ReadFile(filepath.Join(dir, "refused.jsonl")); err != nil || !strings.HasPrefix(string(why), `{"line":1,"kind":0,"reason":"invalid: not an event`) {
			t.Errorf("refused: %s, %v", why, err)
		}
	}
	if code, said := start(t, dir, here, "import", ".").ends(t); code != 1 || !strings.Contains(said, "read .: is a directory") {
		t.Errorf("a folder: %d, %s", code, said)
	}
	interruptWhileItWaits(t, dir, here)
	if code, said := start(t, dir, here, "repo", "list", "--json").ends(t); code != 0 || said != "[]\n" {
		t.Errorf("repo list: %d\n%s", code, said)
	}
	if code, said := start(t, dir, here, "export", "-q").ends(t); code != 0 || said != "" {
		t.Errorf("export: %d\n%s", code, said)
	}
	for password, want := range map[string]string{"": "NGIT_NATS_PASSWORD is not set: ", "hunter3": "NGIT_NATS_PASSWORD is wrong: "} {
		if code, said := start(t, dir, []string{here[0], "NGIT_NATS_PASSWORD=" + password}, "export").ends(t); code != 1 || !strings.HasPrefix(said, "tendril: "+want) {
			t.Errorf("export with the password %q: %d\n%s", password, code, said)
		}
	}
	if err := up.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	up.ends(t)
	if code, said := start(t, dir, domain, "check").ends(t); code != 0 || !strings.Contains(said, "0 events in the log, 1 index, 0 repositories were looked at\n") {
		t.Errorf("check: %d\n%s", code, said)
	}
}

// interruptWhileItWaits interrupts an import that has nothing to read.
func interruptWhileItWaits(t *testing.T, dir string, env []string) {
	t.Helper()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, env, "import", "pipe")
	in, err := os.OpenFile(pipe, os.O_WRONLY, 0) // once it is read
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code, said := p.ends(t); code != -1 || said != "" {
		t.Errorf("interrupted: %d\n%s", code, said)
	}
}
