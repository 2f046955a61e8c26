package world

import (
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Services are the services.
var Services = []string{"ingest", "purgatory", "discovery", "relayconn", "gateway"}

// Replica is one process of one service, or of some.
type Replica struct {
	Name string
	cmd  *exec.Cmd
	out  *output
	done chan error
	t    testing.TB
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
	for k, v := range more {
		env[k] = v
	}
	name := strings.Join(services, " ")
	cmd := exec.Command(Binary(t), append([]string{"run"}, services...)...)
	r := &Replica{Name: name, cmd: cmd, out: &output{}, done: make(chan error, 1), t: t}
	r.cmd.Dir, r.cmd.Env = Folder(t), environment(env)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.done <- r.cmd.Wait() }()
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", name, r.out.tail(60))
		}
	})
	return r
}

var (
	gatewayAt     = regexp.MustCompile(`msg=listening.* address=(127\.0\.0\.1:\d+) domain=`)
	observationAt = regexp.MustCompile(`msg=listening service=observation address=(127\.0\.0\.1:\d+)`)
)

// URL is where a gateway listens; it waits until it does.
func (r *Replica) URL() string {
	r.t.Helper()
	return r.listens("the gateway", gatewayAt)
}

// Listens is URL without waiting; false: it does not listen yet, or has ended, and the port may be
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
	return r.listens("observation", observationAt)
}

func (r *Replica) listens(what string, at *regexp.Regexp) string {
	r.t.Helper()
	var found []string
	Await(r.t, what+" of "+r.Name+" listens", func() bool {
		found = at.FindStringSubmatch(r.out.String())
		return found != nil
	})
	return "http://" + found[1]
}

// AwaitReady waits until the process says on /readyz that it is ready, as Kubernetes does.
func (r *Replica) AwaitReady() {
	r.t.Helper()
	at := r.Observation() + "/readyz"
	Await(r.t, r.Name+" is ready", func() bool {
		resp, err := http.Get(at)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// Output is what the process has printed so far.
func (r *Replica) Output() string { return r.out.String() }

// PID is the id of the process.
func (r *Replica) PID() int { return r.cmd.Process.Pid }

// Dir is the working directory of the process.
func (r *Replica) Dir() string { return r.cmd.Dir }

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

// Kill ends the process at once.
func (r *Replica) Kill() {
	r.cmd.Process.Kill()
	r.done <- <-r.done
}

// Stop asks the process to stop as Kubernetes does, and gives how it ended.
func (r *Replica) Stop() error {
	r.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	return r.Ended()
}

// Ended waits until the process has ended by itself, and gives how.
func (r *Replica) Ended() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		r.t.Fatalf("%s does not end", r.Name)
	}
	return nil
}

// RelayAt is the WebSocket URL of a front door.
func RelayAt(url string) string { return "ws" + strings.TrimPrefix(url, "http") }
