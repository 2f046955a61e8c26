package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// programEnv makes the test binary be the program itself.
const programEnv = "TENDRIL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is `tendril` in a process and a folder of its own.
type program struct {
	*exec.Cmd
	dir    string
	lines  *bufio.Scanner
	stderr bytes.Buffer
}

// start starts `tendril args`. The environment holds no setting but env; every port is any port.
func start(t *testing.T, dir string, env []string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &program{Cmd: exec.CommandContext(ctx, os.Args[0], args...), dir: dir}
	p.Dir = dir
	for _, set := range os.Environ() {
		if !strings.HasPrefix(set, "NGIT_") {
			p.Env = append(p.Env, set)
		}
	}
	p.Env = append(p.Env, programEnv+"=1", "NGIT_BIND_ADDRESS=127.0.0.1:0", "NGIT_NATS_LISTEN=127.0.0.1:0", "NGIT_SHUTDOWN_WAIT=1h")
	p.Env = append(p.Env, env...)
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

// line returns the next line with this prefix, without it.
func (p *program) line(t *testing.T, prefix string) string {
	t.Helper()
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), prefix); ok {
			return rest
		}
	}
	t.Fatalf("it never said %q: %v; stderr:\n%s", prefix, p.Wait(), p.stderr.String())
	return ""
}

// fails waits for the end with exit code 1 and gives the last line of stderr: what the operator is
// told.
func (p *program) fails(t *testing.T) string {
	t.Helper()
	out := new(strings.Builder)
	for p.lines.Scan() {
		fmt.Fprintln(out, p.lines.Text())
	}
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v, want exit code 1; stdout:\n%s\nstderr:\n%s", err, out, p.stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	return lines[len(lines)-1]
}

var domain = []string{"NGIT_DOMAIN=git.example.com"}

func TestUpFromStartToStop(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"file", "memory"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), append(domain, "NGIT_DATABASE_BACKEND="+backend, "NGIT_DOMIAN=x"), "up")
			door := p.line(t, "listening on ")
			if relay := p.line(t, "  relay    "); relay != "ws"+strings.TrimPrefix(door, "http")+" (announced as git.example.com)" {
				t.Errorf("relay: %s", relay)
			}
			if bus := p.line(t, "  NATS     "); !strings.HasPrefix(bus, "nats://127.0.0.1:") {
				t.Errorf("NATS: %s", bus)
			}
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				res, err := http.Get(door + path)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("%s: %d %s, %v", path, res.StatusCode, body, err)
				}
			}
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.line(t, "stopping")
			if err := p.Wait(); err != nil {
				t.Errorf("after SIGTERM: %v; stderr:\n%s", err, p.stderr.String())
			}
			if !strings.Contains(p.stderr.String(), "NGIT_DOMAIN is meant?") {
				t.Errorf("a misspelt setting is not warned of:\n%s", p.stderr.String())
			}
			if _, err := os.Stat(filepath.Join(p.dir, "data", "relay")); (err == nil) != (backend == "file") {
				t.Errorf("the relay data folder: %v", err)
			}
		})
	}
}

// TestSIGHUP: the process begins again with new settings, and stays as it is where they are wrong.
func TestSIGHUP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(line string) {
		if err := os.WriteFile(filepath.Join(dir, ".env"), []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	signal := func(p *program, s syscall.Signal) {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	set("NGIT_RELAY_NAME=one")
	p := start(t, dir, domain, "up")
	p.line(t, "listening on ")
	set("NGIT_RELAY_NAME=two")
	signal(p, syscall.SIGHUP)
	p.line(t, "stopping")
	request, err := http.NewRequest(http.MethodGet, p.line(t, "listening on "), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/nostr+json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if document, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(document), `"name": "two"`) {
		t.Errorf("%s, %v", document, err)
	}
	set("NGIT_GIT_PROCESSES=0")
	signal(p, syscall.SIGHUP)
	signal(p, syscall.SIGTERM)
	p.line(t, "stopping")
	const want = "goes on with its old settings"
	if err := p.Wait(); err != nil || !strings.Contains(p.stderr.String(), want) || !strings.Contains(p.stderr.String(), "want 1 to 100000") {
		t.Errorf("%v, and it did not say %q:\n%s", err, want, p.stderr.String())
	}
}

func TestSecondInstanceOnTheSameFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir, domain, "up")
	first.line(t, "listening on ")
	second := start(t, dir, domain, "up")
	want := `tendril: NGIT_RELAY_DATA_PATH is "./data/relay": another process works in this folder; stop it, or give each a folder of its own`
	if got := second.fails(t); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, setting := range []string{"NGIT_BIND_ADDRESS", "NGIT_NATS_LISTEN"} {
		p := start(t, t.TempDir(), append(slices.Clone(domain), setting+"="+l.Addr().String()), "up")
		got := p.fails(t)
		if !strings.Contains(got, fmt.Sprintf("%s is %q", setting, l.Addr())) || !strings.Contains(got, "address already in use") {
			t.Errorf("%s: %s", setting, got)
		}
	}
}

func TestGitFolderThatIsNotToBeHad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, append(slices.Clone(domain), "NGIT_GIT_DATA_PATH="+file), "up")
	if got := p.fails(t); !strings.HasPrefix(got, "tendril: purgatory: NGIT_GIT_DATA_PATH is \""+file+"\"") {
		t.Error(got)
	}
}

// alone is what services say that are started as a process of their own without a bus to share.
const alone = "NGIT_NATS_URL is not set: a service that runs alone needs a NATS server that the others share (`tendril up` embeds one)"

func TestWrongUseIsOneSentence(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env, args []string
		want      string
	}{
		"no domain":        {nil, []string{"up"}, "tendril: NGIT_DOMAIN is not set: want the public host name of this server, like git.example.com"},
		"wrong value":      {domain, []string{"up", "--git-processes=0"}, `tendril: NGIT_GIT_PROCESSES is "0": want 1 to 100000`},
		"contradiction":    {append([]string{"NGIT_ARCHIVE_READ_ONLY=true"}, domain...), []string{"up"}, `tendril: NGIT_ARCHIVE_READ_ONLY is "true": nothing is archived: want NGIT_ARCHIVE_ALL, NGIT_ARCHIVE_WHITELIST or NGIT_ARCHIVE_GRASP_SERVICES too, or unset it`},
		"no repository":    {nil, []string{"repo", "show", "tree"}, "tendril: <repository>: \"tree\" is no repository: want npub1…/identifier, naddr1… or 30617:<pubkey>:<identifier> (see \"tendril repo show --help\")"},
		"none to ask":      {nil, []string{"repo", "list", "--nats-url=nats://127.0.0.1:1"}, "tendril: no NATS server answers at nats://127.0.0.1:1: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)"},
		"nothing runs":     {nil, []string{"status", "--nats-url=nats://127.0.0.1:1"}, "tendril: no NATS server answers at nats://127.0.0.1:1: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)"},
		"no way in":        {nil, []string{"status", "--nats-listen=none"}, "tendril: NGIT_NATS_LISTEN is \"none\": the NATS of `tendril up` listens nowhere, so it cannot be looked at; want NGIT_NATS_URL or the address that it listens on"},
		"no service":       {domain, []string{"run", "--log-level=debug"}, `tendril: expected "<service> ..." (see "tendril run --help")`},
		"wrong service":    {domain, []string{"run", "gateway", "ingset"}, `tendril: <service> ... must be one of "ingest","purgatory","discovery","relayconn","gateway" but got "ingset" (see "tendril run --help")`},
		"no NATS named":    {domain, []string{"run", "gateway", "discovery"}, "tendril: " + alone},
		"no NATS for one":  {domain, []string{"run", "ingest"}, "tendril: " + alone},
		"no domain to run": {nil, []string{"run", "ingest"}, "tendril: NGIT_DOMAIN is not set: want the public host name of this server, like git.example.com"},
		"wrong flag":       {domain, []string{"up", "--domian=x"}, `tendril: unknown flag --domian, did you mean "--domain"? (see "tendril up --help")`},
		"wrong command":    {domain, []string{"serve"}, `tendril: unexpected argument serve (see "tendril --help")`},
		"wrong subcommand": {nil, []string{"repo", "delete", "x"}, `tendril: unexpected argument delete (see "tendril repo --help")`},
		"no subcommand":    {nil, []string{"repo"}, `tendril: expected one of "list", "show", "restore", "remove" (see "tendril repo --help")`},
		"no argument":      {nil, []string{"logins", "init"}, `tendril: expected "<folder>" (see "tendril logins init --help")`},
		"no value":         {nil, []string{"up", "--domain"}, "tendril: --domain has no value: want --domain=…"},
		"folder is a file": {domain, []string{"up", "--relay-data-path=" + file}, `tendril: NGIT_RELAY_DATA_PATH is "` + file + `": not a directory; want a folder that this user may write to`},
		"no NATS there":    {domain, []string{"up", "--nats-url=nats://127.0.0.1:1"}, "tendril: connect to NATS nats://127.0.0.1:1: nats: no servers available for connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, t.TempDir(), c.env, c.args...)
			if got := p.fails(t); got != c.want || strings.Count(p.stderr.String(), "\n") != 1 {
				t.Errorf("got %s\nwant %s", p.stderr.String(), c.want)
			}
		})
	}
}

// TestAWrongCommandLineOfCheckIsNoFinding calls it as a script would that has a typing error.
func TestAWrongCommandLineOfCheckIsNoFinding(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), nil, "check", "--repiar")
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitUnchecked {
		t.Errorf("%v, want exit status %d", err, exitUnchecked)
	}
}

// TestLoginsTellNoPassword makes, rotates and retires logins, and shows none of them.
func TestLoginsTellNoPassword(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logins")
	for _, command := range []string{"init", "rotate", "retire"} {
		p := start(t, t.TempDir(), nil, "logins", command, dir)
		said := p.line(t, "")
		if err := p.Wait(); err != nil || !strings.HasPrefix(said, filepath.Join(dir, "users.conf")+" ") {
			t.Errorf("%s: %v, %q; stderr:\n%s", command, err, said, p.stderr.String())
		}
		login, err := os.ReadFile(filepath.Join(dir, "gateway.login"))
		if err != nil {
			t.Fatal(err)
		}
		_, password, _ := strings.Cut(strings.TrimSpace(string(login)), ":")
		if strings.Contains(said+p.stderr.String(), password) {
			t.Errorf("%s shows a password", command)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		p := start(t, t.TempDir(), nil, args...)
		p.line(t, "tendril ")
		if args[0] == "version" {
			p.line(t, "commit  ")
			p.line(t, "go      go1.")
		}
		if err := p.Wait(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	for args, want := range map[string]string{
		"": "Usage: tendril <command>", "help": "Usage: tendril <command>", "help repo show": "Usage: tendril repo show <repository>", "completion bash -c": "complete ",
	} {
		p := start(t, t.TempDir(), nil, strings.Fields(args)...)
		p.line(t, want)
		for p.lines.Scan() {
		}
		if err := p.Wait(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, command := range []string{"up", "run"} {
		p := start(t, t.TempDir(), nil, command, "--help-all")
		p.line(t, "Front door")
		p.line(t, "  How clients are treated.")
		for p.lines.Scan() {
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestChosenServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names []serviceName
		want  string
	}{
		{[]serviceName{"ingest"}, "ingest"},
		{[]serviceName{"gateway", "discovery"}, "discovery-gateway"},
		{[]serviceName{"gateway", "relayconn", "discovery", "purgatory", "ingest"}, "ingest-purgatory-discovery-relayconn-gateway"},
	} {
		if got, services := chosen(c.names); got != c.want || len(services) != len(c.names) {
			t.Errorf("%q: %s; want %s", c.names, got, c.want)
		}
	}
}
