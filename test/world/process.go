// Package world is the outside world of Tendril's whole-system tests: the built binary, relays, git
// servers, people with keys, and someone who listens on the bus.
package world

import (
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/child"
	"tendril.dev/lib/testonly"
	"tendril.dev/test/fixture"
)

var must, await = fixture.Must, fixture.Await

// Services are the services.
var Services = []string{"ingest", "purgatory", "discovery", "relayconn", "gateway"}

// Settings is an environment with all delays short enough for tests, and with all limits on how
// long something may take so long that a slow machine does not meet them.
func Settings() map[string]string {
	return map[string]string{
		"NGIT_DOMAIN": fixture.Domain, "NGIT_BIND_ADDRESS": "127.0.0.1:0", "NGIT_NATS_LISTEN": "127.0.0.1:0", "NGIT_ALLOW_PRIVATE_NETWORKS": "true",
		"NGIT_SYNC_BATCH_WINDOW_MS": "100", "NGIT_SYNC_STARTUP_JITTER_MS": "0", "NGIT_SYNC_BASE_BACKOFF_SECS": "1", "TENDRIL_TEST_SYNC_CHECK": "1s", "NGIT_SYNC_PLUS_ENABLED": "false", "NGIT_USER_INDEX_RELAYS": "none",
		"TENDRIL_TEST_HUNT_SYNC_DELAY": "50ms", "TENDRIL_TEST_HUNT_USER_DELAY": "3m", "TENDRIL_TEST_HUNT_INTERVAL": "50ms", "TENDRIL_TEST_HUNT_BACKOFF_BASE": "200ms", "TENDRIL_TEST_HUNT_BACKOFF_MAX": "1s",
		"NGIT_SYNC_DOMAIN_RATE_LIMIT": "10000", "NGIT_LOG_LEVEL": "debug", "NGIT_EVENTS_PER_MINUTE": "10000", "NGIT_EVENTS_PER_MINUTE_PER_IP": "10000", "TENDRIL_TEST_GIT_REQUESTS_PER_MINUTE_PER_IP": "100000",
		"TENDRIL_TEST_EVENT_TIMEOUT": "2m", "NGIT_SHUTDOWN_WAIT": "2m", "TENDRIL_TEST_DISK_LEAST_FREE": "67108864", "NGIT_WORKER_TTL": "1m", "TENDRIL_TEST_CANDIDATE_ACK_WAIT": "1m",
	}
}

// Replica is a process of the program.
type Replica struct {
	Name string // the services that it runs
	Dir  string // where it runs
	cmd  *exec.Cmd
	out  *output
	done chan error // how it has ended
	t    testing.TB
}

// begin starts the program.
func begin(t testing.TB, name, dir string, env map[string]string, args ...string) *Replica {
	t.Helper()
	r := &Replica{Name: name, Dir: dir, cmd: exec.Command(Binary(t), args...), out: &output{}, done: make(chan error, 1), t: t}
	r.cmd.Dir, r.cmd.Env = dir, environment(env)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	must(t, child.Start(r.cmd))
	go func() { r.done <- r.cmd.Wait() }()
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			lines := strings.Split(r.out.String(), "\n")
			t.Logf("the log of %s:\n%s", name, strings.Join(lines[max(0, len(lines)-100):], "\n"))
		}
	})
	return r
}

// environment is ours with these settings and shortened constants, and no others.
func environment(values map[string]string) []string {
	list := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "NGIT_") || strings.HasPrefix(e, testonly.Prefix)
	})
	for k, v := range values {
		list = append(list, k+"="+v)
	}
	return list
}

// StartReplica starts a service as on a cluster: by `tendril run`, with a folder of its own for its
// index, and the git volume shared.
func StartReplica(t testing.TB, name, nats, gitVolume string, more map[string]string) *Replica {
	t.Helper()
	return StartRun(t, []string{name}, nats, gitVolume, more)
}

// StartRun is StartReplica for several services in one process.
func StartRun(t testing.TB, services []string, nats, gitVolume string, more map[string]string) *Replica {
	t.Helper()
	env := Settings()
	env["NGIT_NATS_URL"], env["NGIT_GIT_DATA_PATH"], env["NGIT_OBSERVE_ADDRESS"] = nats, gitVolume, "127.0.0.1:0"
	maps.Copy(env, more)
	return begin(t, strings.Join(services, " "), Folder(t), env, append([]string{"run"}, services...)...)
}

// Stop stops processes as Kubernetes does, the last first. All must end well.
func Stop(t testing.TB, all []*Replica) {
	t.Helper()
	for _, r := range slices.Backward(all) {
		if err := r.Stop(); err != nil {
			t.Errorf("%s ends with %v", r.Name, err)
		}
	}
}

var (
	gatewayAt     = regexp.MustCompile(`msg=listening.* address=(127\.0\.0\.1:\d+) domain=`)
	observationAt = regexp.MustCompile(`msg=listening service=observation address=(127\.0\.0\.1:\d+)`)
)

// Door is the front door that a gateway is; it waits until that is open.
func (r *Replica) Door() Door {
	r.t.Helper()
	return At(r.t, r.listens(gatewayAt))
}

// Listens is Door without waiting; false: it does not listen yet, or has ended, and the port may be
// another process's.
func (r *Replica) Listens() (url string, ok bool) {
	found := gatewayAt.FindStringSubmatch(r.out.String())
	if found == nil || !r.Running() {
		return "", false
	}
	return "http://" + found[1], true
}

// Observation is where metrics and health are served; it waits until they are.
func (r *Replica) Observation() string {
	r.t.Helper()
	return r.listens(observationAt)
}

func (r *Replica) listens(at *regexp.Regexp) string {
	r.t.Helper()
	var found []string
	await(r.t, r.Name+" listens", func() bool {
		found = at.FindStringSubmatch(r.out.String())
		return found != nil
	})
	return "http://" + found[1]
}

// AwaitReady waits until the process says on /readyz that it is ready, as Kubernetes does.
func (r *Replica) AwaitReady() {
	r.t.Helper()
	await(r.t, r.Name+" is ready", r.Ready)
}

// Ready reports whether the process says on /readyz that it is ready; false too if it has ended.
func (r *Replica) Ready() bool {
	found := observationAt.FindStringSubmatch(r.out.String())
	if found == nil || !r.Running() {
		return false
	}
	resp, err := http.Get("http://" + found[1] + "/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Goroutines are the stacks of all goroutines of the process; empty: it does not answer.
func (r *Replica) Goroutines() string {
	found := observationAt.FindStringSubmatch(r.out.String())
	if found == nil {
		return ""
	}
	resp, err := http.Get("http://" + found[1] + "/debug/pprof/goroutine?debug=2")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	stacks, _ := io.ReadAll(resp.Body) // what has come is better than nothing
	return string(stacks)
}

// Output is what the process has printed so far.
func (r *Replica) Output() string { return r.out.String() }

// PID is the id of the process.
func (r *Replica) PID() int { return r.cmd.Process.Pid }

// Running reports whether it is still the process that was started.
func (r *Replica) Running() bool {
	select {
	case err := <-r.done:
		r.done <- err
		return false
	default:
		return true
	}
}

// Kill ends the process as a power cut would end its memory: at once.
func (r *Replica) Kill() {
	r.cmd.Process.Kill()
	r.done <- <-r.done
}

// Stop asks the process to stop as Kubernetes does, and gives how it ended.
func (r *Replica) Stop() error { return r.end(syscall.SIGTERM) }

func (r *Replica) end(by syscall.Signal) error {
	r.t.Helper()
	must(r.t, r.cmd.Process.Signal(by))
	return r.Ended()
}

// Ended waits until the process has ended by itself, and gives how.
func (r *Replica) Ended() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(fixture.Patience):
		r.t.Fatalf("%s does not end", r.Name)
	}
	return nil
}

// Tendril is a running `tendril up`.
type Tendril struct {
	*Replica
	Door
	NATS string // nats://127.0.0.1:port
	env  map[string]string
}

// Start starts Tendril in a folder of its own with more settings, and waits until it says that it
// listens.
func Start(t testing.TB, more map[string]string) *Tendril {
	t.Helper()
	p := &Tendril{Replica: &Replica{Dir: Folder(t)}, Door: At(t, ""), env: Settings()}
	maps.Copy(p.env, more)
	p.Restart()
	return p
}

// Change makes settings take effect with the next Restart.
func (p *Tendril) Change(settings map[string]string) { maps.Copy(p.env, settings) }

var (
	listening = regexp.MustCompile(`(?m)^listening on (http://\S+)$`)
	natsAt    = regexp.MustCompile(`(?m)NATS +(nats://\S+)`)
)

// Restart starts the process (again), on other ports.
func (p *Tendril) Restart() {
	p.tb.Helper()
	p.Replica = begin(p.tb, "tendril", p.Dir, p.env, "up")
	await(p.tb, "tendril is ready", func() bool {
		if !p.Running() {
			p.tb.Fatalf("tendril ended: %v\n%s", p.Ended(), p.out)
		}
		return strings.Contains(p.out.String(), "version ")
	})
	p.URL = listening.FindStringSubmatch(p.out.String())[1]
	p.Domain = p.env["NGIT_DOMAIN"]
	p.NATS = natsAt.FindStringSubmatch(p.out.String())[1]
}

// Tool runs the program beside the process, and gives all that it printed.
func (p *Tendril) Tool(args ...string) (string, error) {
	return RunToEnd(p.tb, p.Dir, map[string]string{"NGIT_NATS_LISTEN": strings.TrimPrefix(p.NATS, "nats://")}, args...)
}

// Stop is Interrupt.
func (p *Tendril) Stop() error { return p.Interrupt() }

// Begin runs the program with this environment.
func Begin(t testing.TB, dir string, env map[string]string, args ...string) *Replica {
	t.Helper()
	return begin(t, "tendril "+args[0], dir, env, args...)
}

// Interrupt asks the process to stop as Ctrl-C does, and gives how it ended.
func (r *Replica) Interrupt() error { return r.end(syscall.SIGINT) }

// RunToEnd runs the program with this environment until it ends by itself, and gives all that it
// printed.
func RunToEnd(t testing.TB, dir string, env map[string]string, args ...string) (string, error) {
	t.Helper()
	r := Begin(t, dir, env, args...)
	err := r.Ended()
	return r.Output(), err
}

// output keeps what a process prints.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Folder is a folder for the test. It is removed with what a git process writes there that outlived
// its killed parent for a moment, over which that of the testing package stumbles.
func Folder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "tendril-")
	must(t, err)
	t.Cleanup(func() {
		await(t, "the test's folder can be removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	return dir
}

// Context ends with the test, or when anything has taken too long.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	t.Cleanup(cancel)
	return ctx
}

// Get asks for a page, with headers as names and values in turn, and reads all of it.
func Get(t testing.TB, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(Context(t), http.MethodGet, url, nil)
	must(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp, string(body)
}
