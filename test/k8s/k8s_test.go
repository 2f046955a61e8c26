// Package k8s proves on a real Kubernetes what Tendril promises there: `make k8s-test`. It builds
// the images, applies an overlay of deploy/k8s into a namespace of its own, and lets an outside
// world (test/k8s/world) of relays, a git server and users meet it: the end-to-end story, relay
// workers scaled while events flow, pods deleted under load, a new image rolled out, logins
// rotated.
//
//	K8S_OVERLAYS   overlays to try, comma-separated (local,local-r3); without it nothing is tried
//	K8S_LOAD       command that brings an image archive, its last argument, into the cluster. Without
//	               it: ctr if CONTAINERD_ADDRESS is set, kind or minikube if they are there
//	K8S_BUILD      0: the images are in the cluster already
//	K8S_NAMESPACE  namespace that is made and deleted again (tendril-test); the outside world has
//	               one with -world at the end
//	K8S_STEPS      steps, comma-separated (story,scale,delete,rollout,logins): story comes before
//	               the others; or sizes alone
//	K8S_EVENTS     events that flow while relay workers are scaled (20000), or of the cold sync in
//	               sizes (100000)
//	K8S_RATE       events a second that flow (100)
//	K8S_RELAYS     foreign relays (41)
//	K8S_NODE_OFF   command that turns the node off whose name is its last argument, for the step node,
//	               which is for a cluster of at least three nodes and not tried unless K8S_STEPS has it
//	K8S_KEEP       1: leave everything as it is at the end
//
// The cluster needs a default StorageClass that can give ReadWriteMany, or volumes made beforehand.
package k8s

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// The images of this test. Their names are its own: it touches no image that something else runs.
const (
	imageTendril = "docker.io/local/tendril:k8s-test"
	imageNext    = "docker.io/local/tendril:k8s-test-next" // another version, to roll out
	imageNATS    = "docker.io/local/nats:k8s-test"
	imageWorld   = "docker.io/local/tendril-world:k8s-test"
)

// options are what the environment says.
type options struct {
	namespace            string
	events, rate, relays int
}

func (o options) worldNamespace() string { return o.namespace + "-world" }

// domain is what the Tendril under test calls itself: its Service.
func (o options) domain() string { return "gateway." + o.namespace + ".svc" }

var deployments = []string{"deployment/ingest", "deployment/purgatory", "deployment/discovery", "deployment/relayconn", "deployment/gateway"}

// steps are what can be tried, by name. All but story and sizes expect that the story was told.
var steps = map[string]func(r *run){
	"story": (*run).story, "scale": (*run).scale, "delete": (*run).deletePods, "rollout": (*run).rollout, "logins": (*run).logins, "ban": (*run).ban, "node": (*run).node, "sizes": (*run).sizes,
}

// TestKubernetes tries the steps on each overlay, and prints what was measured.
func TestKubernetes(t *testing.T) {
	overlays := os.Getenv("K8S_OVERLAYS")
	if overlays == "" {
		t.Skip("needs a Kubernetes: make k8s-test")
	}
	t.Chdir("../..")
	names := strings.Split(cmp.Or(os.Getenv("K8S_STEPS"), "story,ban,scale,delete,rollout,logins"), ",")
	events := "20000"
	if names[0] == "sizes" {
		events = "100000"
	}
	number := func(name, otherwise string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
		if err != nil || n < 1 {
			t.Fatalf("%s: want a number", name)
		}
		return n
	}
	o := options{cmp.Or(os.Getenv("K8S_NAMESPACE"), "tendril-test"), number("K8S_EVENTS", events), number("K8S_RATE", "100"), number("K8S_RELAYS", "41")}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &run{T: t, ctx: ctx, o: o, began: time.Now()}
	t.Cleanup(func() { fmt.Printf("\n== measured ==\n%s\n", strings.Join(r.measures, "\n")) })
	if os.Getenv("K8S_BUILD") != "0" {
		r.buildImages()
	}
	for _, overlay := range strings.Split(overlays, ",") {
		t.Run(overlay, func(t *testing.T) {
			one := &run{T: t, ctx: ctx, o: o, overlay: overlay, dir: t.TempDir(), began: time.Now()}
			t.Cleanup(func() { r.measures = append(r.measures, one.measures...) })
			one.apply()
			for _, name := range names {
				if steps[name] == nil {
					t.Fatalf("K8S_STEPS: there is no step %q", name)
				}
				fmt.Printf("\n== %s: %s ==\n", overlay, name)
				steps[name](one)
			}
		})
	}
}

// run is one overlay that is being tried.
type run struct {
	*testing.T
	ctx      context.Context
	o        options
	overlay  string
	dir      string // a copy of deploy/k8s, with logins
	world    string // pod of the outside world
	nats     *nats.Conn
	began    time.Time
	measures []string
}

func (r *run) say(format string, args ...any) {
	fmt.Printf("[%4.0fs] %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// measured notes a figure for the end.
func (r *run) measured(what string, value any) {
	if took, is := value.(time.Duration); is {
		value = took.Round(100 * time.Millisecond)
	}
	r.measures = append(r.measures, fmt.Sprintf("%s: %s: %v", r.overlay, what, value))
}

// buildImages builds all images and brings them into the cluster.
func (r *run) buildImages() {
	loader := strings.Fields(os.Getenv("K8S_LOAD"))
	if len(loader) == 0 && os.Getenv("CONTAINERD_ADDRESS") != "" {
		loader = []string{"ctr", "images", "import"}
	}
	for _, known := range [][]string{{"kind", "load", "image-archive"}, {"minikube", "image", "load"}} {
		if _, err := exec.LookPath(known[0]); err == nil && len(loader) == 0 {
			loader = known
		}
	}
	if len(loader) == 0 {
		r.Fatal("how do images come into the cluster? Set K8S_LOAD to a command that is given an image archive as its last argument, " +
			"or CONTAINERD_ADDRESS to the socket of the node's containerd; kind and minikube are found by themselves")
	}
	archive := filepath.Join(r.TempDir(), "image.tar")
	for _, build := range [][]string{ // variable, name, package, and what git it needs
		{"VERSION=test", imageTendril, "./cmd/tendril", "git"},
		{"VERSION=next", imageNext, "./cmd/tendril", "git"},
		{"CGO_ENABLED=0", imageNATS, "github.com/nats-io/nats-server/v2"},
		{"VERSION=test", imageWorld, "./test/k8s/world", "git", "http-backend", "remote-http"},
	} {
		began := time.Now()
		r.do(append([]string{"env", build[0], "deploy/image/build", build[1], archive}, build[2:]...)...)
		r.do(append(loader[:len(loader):len(loader)], archive)...)
		info, err := os.Stat(archive)
		r.must(err)
		r.must(os.Remove(archive))
		r.say("%s is built and loaded after %v", build[1], time.Since(began).Round(time.Second))
		r.measured(build[1], fmt.Sprintf("%.1f MiB", float64(info.Size())/(1<<20)))
	}
}

// loginsFolder is the folder of the logins in the copy of the overlay local, on which the others
// build.
func (r *run) loginsFolder() string { return filepath.Join(r.dir, "overlays", "local", "logins") }

// overlayFolder is what is applied.
func (r *run) overlayFolder() string { return filepath.Join(r.dir, "overlays", "k8s-test") }

// writeOverlay copies the manifests, makes logins, and adds an overlay on top of the one to try,
// with what a test needs: its own namespace and domain, and leave to connect to the outside world.
func (r *run) writeOverlay() {
	r.must(os.CopyFS(r.dir, os.DirFS("deploy/k8s")))
	// The logins of this machine's own overlays are not the test's.
	own, err := filepath.Glob(filepath.Join(r.dir, "overlays", "*", "logins"))
	r.must(err)
	for _, folder := range own {
		r.must(os.RemoveAll(folder))
	}
	program := filepath.Join(r.dir, "tendril")
	r.do("go", "build", "-tags", "libsecp256k1", "-o", program, "./cmd/tendril")
	r.do("env", "TENDRIL="+program, filepath.Join(r.dir, "make-logins"), r.loginsFolder())
	r.must(os.MkdirAll(r.overlayFolder(), 0o700))
	for name, text := range map[string]string{
		"kustomization.yaml":    fmt.Sprintf(kustomization, r.o.namespace, r.overlay, r.o.domain()),
		"to-outside-world.yaml": fmt.Sprintf(toOutsideWorld, r.o.worldNamespace()),
	} {
		r.must(os.WriteFile(filepath.Join(r.overlayFolder(), name), []byte(text), 0o600))
	}
}

// apply brings outside world and overlay to life, and measures how long that takes.
func (r *run) apply() {
	r.writeOverlay()
	for _, ns := range []string{r.o.namespace, r.o.worldNamespace()} {
		if _, err := r.try("kubectl", "get", "namespace", ns); err == nil {
			r.Fatalf("there is a namespace %s already: delete it, or choose another with K8S_NAMESPACE", ns)
		}
	}
	r.Cleanup(r.removeAll)
	_, err := r.tryWith(fmt.Sprintf(outsideWorld, r.o.worldNamespace(), imageWorld, r.o.domain(), r.o.relays), "kubectl", "apply", "-f", "-")
	r.must(err)
	began := time.Now()
	r.do("kubectl", "apply", "-k", r.overlayFolder())
	r.ready(10*time.Minute, 0)
	r.say("applied; every pod is ready after %v", time.Since(began).Round(time.Second))
	r.measured("from kubectl apply to ready", time.Since(began))
	r.do("kubectl", "-n", r.o.worldNamespace(), "rollout", "status", "deployment/world", "--timeout=2m")
	pods, err := r.podsOf(r.o.worldNamespace())
	r.must(err)
	for name := range pods {
		r.world = name
	}
	// Who connects has the login that the folder has for the operator at that moment.
	user := func() (name, password string) {
		login, _ := r.operatorLogin() // without it NATS refuses, and the next attempt reads again
		return login.User, login.Password
	}
	r.nats, err = nats.Connect(r.forward(r.ctx, "service/nats"), nats.UserInfoHandler(user),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.IgnoreAuthErrorAbort())
	r.must(err)
}

func (r *run) operatorLogin() (logins.Login, error) {
	return logins.Read(logins.LoginFile(r.loginsFolder(), proto.UserOperator))
}

// removeAll deletes the namespaces. After a failure it first prints what may explain it.
func (r *run) removeAll() {
	// A gateway may wait for five minutes for requests to end, whose clients are gone as well.
	ctx, cancel := context.WithTimeout(context.Background(), 7*time.Minute)
	defer cancel()
	interrupted := r.ctx.Err() != nil && r.T.Context().Err() == nil
	r.ctx = ctx
	show := func(args ...string) {
		out, err := r.try(args...)
		fmt.Printf("$ %s\n%s%v\n", strings.Join(args, " "), out, err)
	}
	for _, ns := range []string{r.o.namespace, r.o.worldNamespace()} {
		if r.Failed() && !interrupted {
			show("kubectl", "-n", ns, "get", "pods", "-o", "wide")
			show("kubectl", "-n", ns, "get", "events", "--sort-by=.lastTimestamp")
			show("kubectl", "-n", ns, "logs", "-l", "app.kubernetes.io/component", "--prefix", "--tail=30", "--max-log-requests=50")
		}
	}
	if os.Getenv("K8S_KEEP") == "1" {
		fmt.Printf("\nK8S_KEEP: the namespaces %s and %s are left\n", r.o.namespace, r.o.worldNamespace())
		return
	}
	show("kubectl", "delete", "namespace", r.o.namespace, r.o.worldNamespace(), "--timeout=6m")
}
