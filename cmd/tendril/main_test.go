package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

// programEnv makes the test binary be the program itself.
const programEnv = "TENDRIL_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var must = fixture.Must

// program is `tendril` in a process and a folder of its own.
type program struct {
	*exec.Cmd
	*testing.T
	lines  *bufio.Scanner
	stderr errorOutput
}

// errorOutput can be read while the program writes it.
type errorOutput struct {
	mu   sync.Mutex
	text []byte
}

func (o *errorOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *errorOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// start starts `tendril args`. The environment holds no setting but env; every port is any port.
func start(t *testing.T, dir string, env []string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*fixture.Patience)
	t.Cleanup(cancel)
	p := &program{T: t, Cmd: exec.CommandContext(ctx, os.Args[0], args...)}
	p.Dir = dir
	p.Env = slices.DeleteFunc(os.Environ(), func(set string) bool { return strings.HasPrefix(set, "NGIT_") })
	p.Env = append(p.Env, programEnv+"=1", "NGIT_BIND_ADDRESS=127.0.0.1:0", "NGIT_NATS_LISTEN=127.0.0.1:0", "NGIT_SHUTDOWN_WAIT=1h")
	p.Env = append(p.Env, env...)
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	must(t, err)
	p.lines = bufio.NewScanner(out)
	must(t, p.Start())
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

// line returns the next line with this prefix, without it.
func (p *program) line(prefix string) string {
	p.Helper()
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), prefix); ok {
			return rest
		}
	}
	p.Fatalf("it never said %q: %v; stderr:\n%s", prefix, p.Wait(), p.stderr.String())
	return ""
}

// ends waits for the end and gives the exit code and all that was said, errors last.
func (p *program) ends() (code int, said string) {
	p.Helper()
	var out strings.Builder
	for p.lines.Scan() {
		out.WriteString(p.lines.Text() + "\n")
	}
	err := p.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code, err = exit.ExitCode(), nil
	}
	must(p.T, err)
	return code, out.String() + p.stderr.String()
}

func (p *program) signal(s syscall.Signal) {
	p.Helper()
	must(p.T, p.Process.Signal(s))
}

var domain = []string{"NGIT_DOMAIN=git.example.com"}

// with adds settings to the domain.
func with(env ...string) []string { return append(slices.Clone(domain), env...) }

func TestUpFromStartToStop(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"file", "memory"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), with("NGIT_DATABASE_BACKEND="+backend, "NGIT_DOMIAN=x"), "up")
			door := p.line("listening on ")
			if relay := p.line("  relay    "); relay != "ws"+strings.TrimPrefix(door, "http")+" (announced as git.example.com)" {
				t.Errorf("relay: %s", relay)
			}
			if url := p.line("  NATS     "); !strings.HasPrefix(url, "nats://127.0.0.1:") {
				t.Errorf("NATS: %s", url)
			}
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				res, err := http.Get(door + path)
				must(t, err)
				if res.Body.Close(); res.StatusCode != http.StatusOK {
					t.Errorf("%s: %d", path, res.StatusCode)
				}
			}
			p.signal(syscall.SIGTERM)
			if code, said := p.ends(); code != 0 || !strings.Contains(said, "stopping\n") || !strings.Contains(said, "NGIT_DOMAIN is meant?") {
				t.Errorf("after SIGTERM: %d, %s", code, said)
			}
			if _, err := os.Stat(filepath.Join(p.Dir, "data", "relay")); (err == nil) != (backend == "file") {
				t.Errorf("the relay data folder: %v", err)
			}
		})
	}
}

// TestWrongUseIsOneSentence: each failure is one sentence, and the exit code is for scripts.
func TestWrongUseIsOneSentence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	nowhere, empty := []string{"NGIT_NATS_URL=nats://127.0.0.1:1"}, []string{"NGIT_NATS_URL=" + nettest.NewNATS(t, "").URL}
	running := t.TempDir()
	port := strings.TrimPrefix(start(t, running, domain, "up").line("listening on "), "http://")
	env := map[string][]string{
		"domain": domain, "nowhere": nowhere, "empty": empty, "domain, nowhere": with(nowhere...), "domain, read-only": with("NGIT_ARCHIVE_READ_ONLY=true"),
		"domain, folder": with("NGIT_GIT_DATA_PATH=" + file), "domain, port": with("NGIT_BIND_ADDRESS=" + port), "domain, bus": with("NGIT_NATS_LISTEN=" + port),
	}
	words := strings.NewReplacer("FILE", file, "FOLDER", filepath.Join(running, "data", "relay"), "PORT", port, "DIR", dir, "«", "`", "»", "`",
		"NO-SERVER", "no NATS server answers at nats://127.0.0.1:1: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)", "EMPTY", strings.TrimPrefix(empty[0], "NGIT_NATS_URL="),
		"NO-DOMAIN", "NGIT_DOMAIN is not set: want the public host name of this server, like git.example.com")
	// The settings, the arguments, the exit code, and what is said behind the name of the program.
	// "…": what is said begins so.
	for _, c := range fixture.Rows(words.Replace(`
		                  | up                                   | 1 | NO-DOMAIN
		domain            | up --git-processes=0                 | 1 | NGIT_GIT_PROCESSES is "0": want 1 to 100000
		domain, read-only | up                                   | 1 | NGIT_ARCHIVE_READ_ONLY is "true": nothing is archived: want NGIT_ARCHIVE_ALL…
		domain            | up --domian=x                        | 2 | unknown flag --domian, did you mean "--domain"? (see "tendril up --help")
		                  | up --domain                          | 2 | --domain has no value: want --domain=……
		domain            | up --relay-data-path=FILE            | 1 | NGIT_RELAY_DATA_PATH is "FILE": not a directory; want a folder that this user may write to
		domain, folder    | up                                   | 1 | purgatory: NGIT_GIT_DATA_PATH is "FILE"…
		domain            | up --nats-url=nats://127.0.0.1:1     | 1 | connect to NATS nats://127.0.0.1:1: nats: no servers available for connection
		domain            | up --relay-data-path=FOLDER          | 1 | NGIT_RELAY_DATA_PATH is "FOLDER": another process works in this folder; stop it, or give each a folder of its own
		domain, port      | up                                   | 1 | gateway: NGIT_BIND_ADDRESS is "PORT": …
		domain, bus       | up                                   | 1 | NGIT_NATS_LISTEN is "PORT": …
		                  | run ingest                           | 1 | NO-DOMAIN
		domain            | run --log-level=debug                | 2 | expected "<service> ..." (see "tendril run --help")
		domain            | run gateway ingset                   | 2 | <service> ... must be one of "ingest","purgatory","discovery","relayconn","gateway" but got "ingset"…
		domain            | run gateway discovery                | 1 | NGIT_NATS_URL is not set: a service that runs alone needs a NATS server that the others share («tendril up» embeds one)
		domain            | serve                                | 2 | unexpected argument serve (see "tendril --help")
		                  | repo                                 | 2 | expected one of "list", "show", "restore", "remove" (see "tendril repo --help")
		                  | up --relay-owner-nsec=nsec1x         | 2 | NGIT_RELAY_OWNER_NSEC must not be given as a flag, which every user of this machine can read: set it in the environment or in .env, or keep the key in a file or a systemd credential
		                  | repo show tree                       | 2 | <repository>: "tree" is no repository: want npub1…/identifier, its address, naddr1… or 30617:<pubkey>:<identifier> (see "tendril repo show --help")
		nowhere           | why tree                             | 2 | <subject>: "tree" is not understood: …
		nowhere           | why identifier:tree                  | 2 | <subject>: identifier:tree is of many: why tells of one event, repository or relay; «tendril repo list tree» lists repositories (see "tendril why --help")
		                  | up --git-processes=many              | 1 | NGIT_GIT_PROCESSES is "many": want a whole number
		                  | status --wait=long                   | 2 | --wait is "long": want a time with its unit, like 500ms, 30s, 5m or 24h
		                  | logins init                          | 2 | expected "<folder>" (see "tendril logins init --help")
		nowhere           | status                               | 1 | NO-SERVER
		                  | status --nats-listen=none            | 1 | NGIT_NATS_LISTEN is "none": the NATS of «tendril up» listens nowhere…
		empty             | status                               | 1 | NATS at EMPTY has no streams of Tendril: none has run with it
		empty             | export -o out.jsonl                  | 1 | NATS at …
		empty             | export --git copies                  | 1 | NGIT_GIT_DATA_PATH is "./data/git": list repositories: open…
		empty             | export --from https://x              | 2 | --from says where repositories are copied from; want --git too…
		empty             | import file                          | 1 | NATS at …
		empty             | import none.jsonl                    | 1 | open none.jsonl: no such file…
		empty             | import https://relay.example.com     | 1 | https://relay.example.com is no URL of a relay, and no file; want ws:// or wss://…
		empty             | import file --refused ./file         | 1 | --refused is "./file", which is the file that is read…
		empty             | import file --git none               | 1 | list repositories: open DIR/none: no such file…
		                  | check --repiar                       | 2 | unknown flag --repiar…
		                  | check                                | 2 | could not check: NO-DOMAIN
		domain            | check                                | 2 | could not check: NGIT_RELAY_DATA_PATH is "./data/relay": there is no log in it…
		domain, nowhere   | check                                | 2 | could not check: NO-SERVER`)) {
		t.Run(c[1], func(t *testing.T) {
			folder := dir
			if strings.HasPrefix(c[1], "up") {
				folder = t.TempDir()
			}
			code, said := start(t, folder, env[c[0]], strings.Fields(c[1])...).ends()
			want, begins := strings.CutSuffix("tendril: "+c[3], "…")
			if !begins {
				want += "\n"
			}
			sentence := said[strings.LastIndex("\n"+strings.TrimSuffix(said, "\n"), "\n"):]
			if fmt.Sprint(code) != c[2] || !strings.HasPrefix(sentence, want) || !begins && want != said {
				t.Errorf("exit code %d, want %s; said\n%swant\n%s", code, c[2], said, want)
			}
		})
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "{}\n" {
		t.Errorf("the file that was read is %q now, %v", content, err)
	}
	b, err := bus.Look(bus.Options{URL: strings.TrimPrefix(empty[0], "NGIT_NATS_URL=")}, time.Minute)
	must(t, err)
	defer b.Close()
	if info, err := b.JS.AccountInfo(t.Context()); err != nil || info.Streams != 0 || info.Consumers != 0 {
		t.Errorf("made on a NATS server that no Tendril uses: %+v, %v", info, err)
	}
}

// TestSIGHUP: the process begins again with new settings. It stays as it is where they are wrong,
// and where everything is in memory.
func TestSIGHUP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(line string) {
		must(t, os.WriteFile(filepath.Join(dir, ".env"), []byte(line+"\n"), 0o600))
	}
	stays := func(p *program, why string) {
		t.Helper()
		const want = "goes on with its old settings"
		p.signal(syscall.SIGHUP)
		fixture.Await(t, "it goes on", func() bool { return strings.Contains(p.stderr.String(), want) })
		p.signal(syscall.SIGTERM)
		p.line("stopping")
		if code, said := p.ends(); code != 0 || !strings.Contains(said, want) || !strings.Contains(said, why) {
			t.Errorf("exit code %d, and it did not say %q and %q:\n%s", code, want, why, said)
		}
	}
	set("NGIT_RELAY_NAME=one")
	p := start(t, dir, domain, "up")
	p.line("listening on ")
	set("NGIT_RELAY_NAME=two names")
	p.signal(syscall.SIGHUP)
	p.line("stopping")
	p.signal(syscall.SIGHUP) // once more changes nothing
	page, err := http.Get(p.line("listening on "))
	must(t, err)
	defer page.Body.Close()
	if text, err := io.ReadAll(page.Body); err != nil || !strings.Contains(string(text), "two names") {
		t.Errorf("%s, %v", text, err)
	}
	set("NGIT_GIT_PROCESSES=0")
	stays(p, "want 1 to 100000")
	set("")
	p = start(t, dir, domain, "up")
	p.line("listening on ")
	p = start(t, t.TempDir(), with("NGIT_DATABASE_BACKEND=memory"), "up")
	p.line("listening on ")
	stays(p, "everything would be lost")
}

// TestLoginsTellNoPassword makes, rotates and retires logins, and shows none of them.
func TestLoginsTellNoPassword(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logins")
	for _, command := range []string{"init", "rotate", "retire"} {
		code, said := start(t, t.TempDir(), nil, "logins", command, dir).ends()
		login, err := os.ReadFile(filepath.Join(dir, "gateway.login"))
		_, password, _ := strings.Cut(strings.TrimSpace(string(login)), ":")
		if err != nil || code != 0 || !strings.HasPrefix(said, filepath.Join(dir, "users.conf")+" ") || strings.Contains(said, password) {
			t.Errorf("%s: %d, %q, %v", command, code, said, err)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"version": "\ngo      go1.", "--version": "tendril ", "": "Usage: tendril <command>",
		"help repo show": "Usage: tendril repo show <repository>", "completion fish": "complete ",
		"up --help-all": "\n  How clients are treated.",
	} {
		if code, said := start(t, t.TempDir(), nil, strings.Fields(args)...).ends(); code != 0 || !strings.Contains(said, want) {
			t.Errorf("%s: %d, %s", args, code, said)
		}
	}
}

// TestCompletionIsSourced: a shell can source what the command prints, and it sets up completion.
func TestCompletionIsSourced(t *testing.T) {
	t.Parallel()
	code, printed := start(t, t.TempDir(), nil, "completion", "bash").ends()
	script := filepath.Join(t.TempDir(), "completion")
	must(t, os.WriteFile(script, []byte(printed), 0o600))
	said, err := exec.Command("bash", "-euc", "source "+script+"; complete -p tendril").CombinedOutput()
	if code != 0 || err != nil || !strings.Contains(string(said), " tendril\n") {
		t.Errorf("%d, %v\n%s\nfrom\n%s", code, err, said, printed)
	}
}

func TestChosenServices(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]serviceName{
		"ingest": {"ingest"}, "discovery-gateway": {"gateway", "discovery"},
		"ingest-purgatory-discovery-relayconn-gateway": {"gateway", "relayconn", "discovery", "purgatory", "ingest"},
	} {
		if got, services := chosen(names); got != want || len(services) != len(names) {
			t.Errorf("%q: %s; want %s", names, got, want)
		}
	}
}

// TestCommandsOnAPrivateSystem say what they did, and refuse what would do nothing.
func TestCommandsOnAPrivateSystem(t *testing.T) {
	t.Parallel()
	dir, guest := t.TempDir(), fixture.NewPerson().Npub
	up := start(t, dir, with("NGIT_PRIVATE_MODE=true", "NGIT_PRIVATE_MEMBERS="+fixture.NewPerson().Npub), "up")
	up.line("listening on ")
	url, _, _ := strings.Cut(up.line("  NATS     "), " ")
	here := []string{"NGIT_NATS_LISTEN=" + strings.TrimPrefix(url, "nats://")}
	for _, c := range fixture.Rows(strings.ReplaceAll(`
		name add project GUEST/tree     | 1 | a private service answers for no name
		member add GUEST --json         | 0 | "npub": "GUEST"
		member list                     | 0 | a member
		ban GUEST                       | 0 | author GUEST is banned
		member add GUEST                | 1 | GUEST is banned, so it cannot be a member: tendril unban GUEST
		member list                     | 0 | banned
		member list --json              | 0 | "banned": true
		make-public --everything --json | 0 | "private": false`, "GUEST", guest)) {
		code, said := start(t, dir, here, append(strings.Fields(c[0]), "--wait="+fixture.Patience.String())...).ends()
		if fmt.Sprint(code) != c[1] || !strings.Contains(said, c[2]) {
			t.Errorf("%s: %d, want %s and %q:\n%s", c[0], code, c[1], c[2], said)
		}
	}
	up.signal(syscall.SIGTERM)
	if code, said := up.ends(); code != 0 {
		t.Errorf("after SIGTERM: %d\n%s", code, said)
	}
}

// TestCommandsOnARunningSystem whose NATS has a password.
func TestCommandsOnARunningSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	up := start(t, dir, with("NGIT_NATS_PASSWORD=hunter2", "TENDRIL_TEST_WORKER_NAME=one"), "up")
	up.line("listening on ")
	url, _, _ := strings.Cut(up.line("  NATS     "), " ")
	listen := "NGIT_NATS_LISTEN=" + strings.TrimPrefix(url, "nats://")
	here := []string{listen, "NGIT_NATS_PASSWORD=hunter2"}
	must(t, os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte("{}\n"), 0o600))
	// The arguments, the exit code, and what is said; the second import is into the same file.
	for _, c := range fixture.Rows(`
		status                                      | 0 | domain        git.example.com & NATS          URL & of at most & writer one, since 2 & held          0 events, & clients       0 connections & one             64
		import events.jsonl --refused refused.jsonl | 0 | 1  refused
		import events.jsonl --refused refused.jsonl | 0 | 1  lines read
		import .                                    | 1 | read .: is a directory
		repo list --json                            | 0 | []
		export -o copy.jsonl                        | 0 | events written to copy.jsonl
		export -o copy.jsonl --json                 | 0 | { & "events": 
		export --json                               | 2 | want --output FILE
		logins init more --json                     | 0 | [ & "more/users.conf",
		ban tree                                    | 2 | write identifier:tree
		ban https://git.example.com/tree.git       | 2 | is not understood: its path has no npub
		ban identifier:tree                             | 0 | identifier identifier:tree is banned
		unban identifier:tree --json                      | 0 | { & "what": "identifier:tree",
		ban identifier:tree wss://relay.example --purge   | 2 | nothing is stored of wss://relay.example
		bans --json                                 | 0 | []
		export --nats-password=hunter3              | 1 | tendril: NGIT_NATS_PASSWORD is wrong:`) {
		args := strings.Fields(c[0])
		if args[0] != "logins" { // which asks no one
			args = append(args, "--wait="+fixture.Patience.String())
		}
		code, said := start(t, dir, here, args...).ends()
		for want := range strings.SplitSeq(strings.ReplaceAll(c[2], "URL", url), " & ") {
			if fmt.Sprint(code) != c[1] || !strings.Contains(said, want) {
				t.Errorf("%s: %d, want %s and %q:\n%s", c[0], code, c[1], want, said)
			}
		}
	}
	// An import that is interrupted while it reads says so, offers nothing, and leaves no file.
	pipe, scratch := filepath.Join(t.TempDir(), "pipe"), t.TempDir()
	must(t, syscall.Mkfifo(pipe, 0o600))
	reads := start(t, dir, append(here, "TMPDIR="+scratch), "import", pipe, "--refused", "none.jsonl")
	in, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	must(t, err)
	defer in.Close()
	_, err = in.WriteString(strings.Repeat("{}\n", 1<<19)) // more than fits into the pipe
	must(t, err)
	reads.signal(syscall.SIGINT)
	if code, said := reads.ends(); code != 1 || said != "tendril: "+errInterrupted.Error()+"\n" {
		t.Errorf("interrupted: %d, %s", code, said)
	}
	left, err := os.ReadDir(scratch)
	if _, missing := os.Stat(filepath.Join(dir, "none.jsonl")); err != nil || len(left) > 0 || !errors.Is(missing, fs.ErrNotExist) {
		t.Errorf("left behind: %v, %v, %v", left, err, missing)
	}
	if why, err := os.ReadFile(filepath.Join(dir, "refused.jsonl")); err != nil || !strings.HasPrefix(string(why), `{"line":1,"kind":0,"reason":"invalid: not an event`) {
		t.Errorf("refused: %s, %v", why, err)
	}
	stay := start(t, dir, here, "status", "--json", "--watch")
	var got report
	for range 2 {
		if err := json.Unmarshal([]byte(stay.line("")), &got); err != nil {
			t.Error(err)
		}
	}
	if got.Shards["one"] != 64 || len(got.Processes) != 1 || got.Processes[0].Version == "" || got.Writer.Writer != "one" || len(got.Streams) < 10 {
		t.Errorf("%+v", got)
	}
	for _, p := range []*program{stay, up} {
		p.signal(syscall.SIGTERM)
		if code, said := p.ends(); code != 0 {
			t.Errorf("after SIGTERM: %d\n%s", code, said)
		}
	}
	if code, said := start(t, dir, domain, "check").ends(); code != 0 || !strings.Contains(said, " events in the log, 1 index, 0 repositories were looked at\n") {
		t.Errorf("check: %d\n%s", code, said)
	}
}
