package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"tendril.dev/test/k8s/cluster"
	"tendril.dev/test/k8s/load"
)

// run is one overlay that is being tried.
type run struct {
	o       options
	overlay string
	cluster *cluster.Cluster
	bus     *operator
	dir     string // a copy of deploy/k8s, with logins
	world   string // pod of the outside world
	began   time.Time
	summary *summary
}

// services are the five Deployments.
var services = []string{"ingest", "purgatory", "discovery", "relayconn", "gateway"}

func newRun(ctx context.Context, o options, overlay string, s *summary) (*run, error) {
	r := &run{o: o, overlay: overlay, summary: s}
	var err error
	if r.cluster, err = cluster.Connect(ctx); err != nil {
		return nil, err
	}
	for _, ns := range []string{r.o.namespace, r.worldNamespace()} {
		if _, err := cluster.Kubectl(ctx, "get", "namespace", ns); err == nil {
			return nil, fmt.Errorf("there is a namespace %s already: delete it, or choose another with K8S_NAMESPACE", ns)
		}
	}
	if r.dir, err = os.MkdirTemp("", "tendril-k8s-"); err != nil {
		return nil, err
	}
	if err := r.writeOverlay(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(r.dir))
	}
	return r, nil
}

func (r *run) worldNamespace() string { return r.o.namespace + "-world" }

// loginsFolder is the folder of the logins in the copy of the overlay local, on which the others
// build.
func (r *run) loginsFolder() string { return filepath.Join(r.dir, "overlays", "local", "logins") }

// overlayFolder is what is applied.
func (r *run) overlayFolder() string { return filepath.Join(r.dir, "overlays", "k8s-test") }

// writeOverlay copies the manifests, makes logins, and adds an overlay on top of the one to try,
// with what a test needs: its own namespace and domain, and leave to connect to the outside world.
func (r *run) writeOverlay(ctx context.Context) error {
	if err := os.CopyFS(r.dir, os.DirFS("deploy/k8s")); err != nil {
		return fmt.Errorf("copy the manifests: %w", err)
	}
	// The logins of this machine's own overlays are not the test's.
	own, err := filepath.Glob(filepath.Join(r.dir, "overlays", "*", "logins"))
	if err != nil {
		return err
	}
	for _, folder := range own {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	program := filepath.Join(r.dir, "tendril")
	if out, err := exec.CommandContext(ctx, "go", "build", "-tags", "libsecp256k1", "-o", program, "./cmd/tendril").CombinedOutput(); err != nil {
		return fmt.Errorf("build tendril: %w\n%s", err, out)
	}
	logins := exec.CommandContext(ctx, filepath.Join(r.dir, "make-logins"), r.loginsFolder())
	logins.Env = append(os.Environ(), "TENDRIL="+program)
	if out, err := logins.CombinedOutput(); err != nil {
		return fmt.Errorf("make logins: %w\n%s", err, out)
	}
	files := map[string]string{
		filepath.Join(r.overlayFolder(), "kustomization.yaml"):    fmt.Sprintf(kustomization, r.o.namespace, r.overlay, r.domain()),
		filepath.Join(r.overlayFolder(), "to-outside-world.yaml"): fmt.Sprintf(toOutsideWorld, r.worldNamespace()),
	}
	if err := os.MkdirAll(r.overlayFolder(), 0o700); err != nil {
		return err
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// loginsCommand runs `tendril logins`.
func (r *run) loginsCommand(ctx context.Context, verb string) error {
	if out, err := exec.CommandContext(ctx, filepath.Join(r.dir, "tendril"), "logins", verb, r.loginsFolder()).CombinedOutput(); err != nil {
		return fmt.Errorf("tendril logins %s: %w\n%s", verb, err, out)
	}
	return nil
}

// domain is what the Tendril under test calls itself: its Service.
func (r *run) domain() string { return "gateway." + r.o.namespace + ".svc" }

// apply brings outside world and overlay to life, and measures how long that takes.
func (r *run) apply(ctx context.Context) error {
	r.began = time.Now()
	r.headline("%s: kubectl apply", r.overlay)
	world := fmt.Sprintf(outsideWorld, r.worldNamespace(), imageWorld, r.domain(), r.o.relays)
	if _, err := cluster.KubectlWith(ctx, world, "apply", "-f", "-"); err != nil {
		return err
	}
	began := time.Now()
	if _, err := cluster.Kubectl(ctx, "apply", "-k", r.overlayFolder()); err != nil {
		return err
	}
	if err := r.allReady(ctx, 10*time.Minute); err != nil {
		return err
	}
	took := time.Since(began)
	r.say("applied; every pod is ready after %v", took.Round(time.Second))
	r.measured("from kubectl apply to ready", took)
	if _, err := cluster.Kubectl(ctx, "-n", r.worldNamespace(), "rollout", "status", "deployment/world", "--timeout=2m"); err != nil {
		return err
	}
	pods, err := r.cluster.Pods(ctx, r.worldNamespace())
	if err != nil || len(pods) != 1 {
		return errors.Join(err, fmt.Errorf("the outside world has %d pods", len(pods)))
	}
	r.world = pods[0].Name
	r.bus, err = openBus(ctx, r.o.namespace, r.loginsFolder())
	return err
}

// workloads are what is rolled out, as kubectl names them.
func workloads() []string {
	all := []string{"statefulset/nats"}
	for _, s := range services {
		all = append(all, "deployment/"+s)
	}
	return all
}

// allReady waits until every workload has all its pods, up to date and ready.
func (r *run) allReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, w := range workloads() {
		if _, err := cluster.Kubectl(ctx, "-n", r.o.namespace, "rollout", "status", w, "--timeout="+limit.String()); err != nil {
			return fmt.Errorf("%s is not ready after %v: %w", w, limit, err)
		}
	}
	return nil
}

// await asks again every second until ready says nothing, and fails with what it said last.
func (r *run) await(ctx context.Context, what string, limit time.Duration, ready func() (problem string)) error {
	deadline := time.Now().Add(limit)
	for {
		problem := ready()
		if problem == "" {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("still not after %v: %s: %s", limit, what, problem)
		}
		time.Sleep(time.Second)
	}
}

// task is one of the outside world.
type task struct {
	name  string
	ended chan error
}

// begin begins a task, and prints what it says.
func (r *run) begin(ctx context.Context, name string, query url.Values) *task {
	t := &task{name, make(chan error, 1)}
	go func() {
		last := "the answer has ended too early"
		err := r.cluster.Lines(ctx, r.worldPath("/tasks/"+name+"?"+query.Encode()), func(line string) {
			if last = line; line != load.Done {
				r.say("%s", line)
			}
		})
		if err == nil && last != load.Done {
			err = errors.New(last)
		}
		t.ended <- err
	}()
	return t
}

// finish waits until a task has ended.
func (t *task) finish(limit time.Duration) error {
	select {
	case err := <-t.ended:
		return err
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended after %v", t.name, limit)
	}
}

// worldPath is a path of the outside world.
func (r *run) worldPath(path string) string {
	return cluster.PodPath(r.worldNamespace(), r.world, 8080, path)
}

// status is how the outside world stands.
func (r *run) status(ctx context.Context) (s load.Status, err error) {
	err = r.cluster.Get(ctx, r.worldPath("/status"), &s)
	return s, err
}

func (r *run) headline(format string, args ...any) { fmt.Printf("\n== "+format+" ==\n", args...) }

func (r *run) say(format string, args ...any) {
	fmt.Printf("[%4.0fs] %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// measured adds a time to the summary.
func (r *run) measured(what string, took time.Duration) {
	r.summary.add(r.overlay+": "+what, took.Round(100*time.Millisecond).String())
}

// diagnose prints what may explain a failure: pods, events, and the ends of their logs.
func (r *run) diagnose() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	show := func(lines int, args ...string) {
		out, err := cluster.Kubectl(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		all := strings.Split(strings.TrimSpace(out), "\n")
		fmt.Printf("$ kubectl %s\n%s\n\n", strings.Join(args, " "), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	for _, ns := range []string{r.o.namespace, r.worldNamespace()} {
		show(40, "-n", ns, "get", "pods", "-o", "wide")
		show(15, "-n", ns, "get", "events", "--sort-by=.lastTimestamp")
		pods, err := r.cluster.Pods(ctx, ns)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, p := range pods {
			lines := 6
			if !p.Ready || p.Restarts > 0 {
				lines = 30
			}
			show(lines, "-n", ns, "logs", p.Name, fmt.Sprintf("--tail=%d", lines))
			if p.Restarts > 0 {
				show(lines, "-n", ns, "logs", p.Name, "--previous", fmt.Sprintf("--tail=%d", lines))
			}
		}
	}
}

// removeAll deletes the namespaces, and our copy of the manifests.
func (r *run) removeAll(keep bool) {
	if keep {
		fmt.Printf("\nK8S_KEEP: the namespaces %s and %s are left, logins are in %s\n", r.o.namespace, r.worldNamespace(), r.loginsFolder())
		return
	}
	// A gateway may wait for five minutes for requests to end, whose clients are gone as well.
	ctx, cancel := context.WithTimeout(context.Background(), 7*time.Minute)
	defer cancel()
	if _, err := cluster.Kubectl(ctx, "delete", "namespace", r.o.namespace, r.worldNamespace(), "--timeout=6m"); err != nil {
		fmt.Printf("clean up: %v\n", err)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		fmt.Printf("clean up: %v\n", err)
	}
}
