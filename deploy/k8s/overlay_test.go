// Package manifests tests the Kubernetes manifests in this folder: it builds the overlays as
// kubectl does, and checks what Kubernetes itself would only find out when something fails.
package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// overlay is what an overlay makes.
type overlay struct {
	name       string
	workloads  []workload
	budgets    []policy.PodDisruptionBudget
	accounts   map[string]core.ServiceAccount
	configMaps map[string]core.ConfigMap
	secrets    map[string]core.Secret
	claims     map[string]core.PersistentVolumeClaim
	policies   []networking.NetworkPolicy
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	name     string
	pod      core.PodTemplateSpec
	update   apps.DeploymentStrategy // of a Deployment
	stateful bool
}

func (w workload) container() core.Container { return w.pod.Spec.Containers[0] }

// port finds a port of the workload by its name.
func (w workload) port(name string) (int32, bool) {
	for _, p := range w.container().Ports {
		if p.Name == name {
			return p.ContainerPort, true
		}
	}
	return 0, false
}

var built struct {
	sync.Once
	overlays []overlay
}

// overlays returns all overlays, and production with all components. They are built once.
func overlays(t *testing.T) []overlay {
	t.Helper()
	built.Do(func() { built.overlays = buildAll(t) })
	if len(built.overlays) == 0 {
		t.Fatal("the overlays cannot be built")
	}
	return built.overlays
}

// buildAll builds the overlays. The folders of logins, which are not in the repository, are filled
// with anything.
func buildAll(t *testing.T) []overlay {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"base", "components", "overlays"} {
		must(t, os.CopyFS(filepath.Join(dir, folder), withoutLogins{os.DirFS(folder)}))
	}
	var all []overlay
	for _, name := range []string{"local", "local-r3", "production", "components"} {
		at := filepath.Join(dir, "overlays", name)
		if name == "components" {
			at = withComponents(t, dir)
		}
		logins := filepath.Join(at, "logins")
		must(t, os.MkdirAll(logins, 0o700))
		for _, file := range []string{"gateway.login", "ingest.login", "purgatory.login", "discovery.login", "relayconn.login",
			"users.conf", "routes.conf", "owner.nsec"} {
			must(t, os.WriteFile(filepath.Join(logins, file), []byte("x"), 0o600))
		}
		all = append(all, build(t, name, at))
	}
	return all
}

// withComponents makes an overlay of production with the components that stand there as comments.
func withComponents(t *testing.T, dir string) string {
	t.Helper()
	at := filepath.Join(dir, "overlays", "components")
	must(t, os.CopyFS(at, os.DirFS(filepath.Join(dir, "overlays", "production"))))
	file := filepath.Join(at, "kustomization.yaml")
	text, err := os.ReadFile(file)
	must(t, err)
	uncommented := strings.NewReplacer("# components:", "components:", "#   - ../../components", "  - ../../components").Replace(string(text))
	must(t, os.WriteFile(file, []byte(uncommented), 0o600))
	return at
}

// withoutLogins hides the folders that hold real passwords.
type withoutLogins struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (w withoutLogins) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	kept := entries[:0]
	for _, e := range entries {
		if e.Name() != "logins" {
			kept = append(kept, e)
		}
	}
	return kept, err
}

// build is `kubectl kustomize`. A field that Kubernetes does not know fails the test.
func build(t *testing.T, name, dir string) overlay {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	o := overlay{
		name: name, accounts: map[string]core.ServiceAccount{}, configMaps: map[string]core.ConfigMap{},
		secrets: map[string]core.Secret{}, claims: map[string]core.PersistentVolumeClaim{},
	}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		must(t, err)
		if kind := r.GetKind(); kind != "Namespace" && r.GetNamespace() != "tendril" {
			t.Errorf("%s: %s %s is in namespace %q", name, kind, r.GetName(), r.GetNamespace())
		}
		switch r.GetKind() {
		case "Deployment":
			d := strict[apps.Deployment](t, text)
			o.workloads = append(o.workloads, workload{name: d.Name, pod: d.Spec.Template, update: d.Spec.Strategy})
		case "StatefulSet":
			s := strict[apps.StatefulSet](t, text)
			o.workloads = append(o.workloads, workload{name: s.Name, pod: s.Spec.Template, stateful: true})
		case "Service":
			strict[core.Service](t, text)
		case "PodDisruptionBudget":
			o.budgets = append(o.budgets, strict[policy.PodDisruptionBudget](t, text))
		case "ServiceAccount":
			o.accounts[r.GetName()] = strict[core.ServiceAccount](t, text)
		case "ConfigMap":
			o.configMaps[r.GetName()] = strict[core.ConfigMap](t, text)
		case "Secret":
			o.secrets[r.GetName()] = strict[core.Secret](t, text)
		case "PersistentVolumeClaim":
			o.claims[r.GetName()] = strict[core.PersistentVolumeClaim](t, text)
		case "NetworkPolicy":
			o.policies = append(o.policies, strict[networking.NetworkPolicy](t, text))
		case "Ingress":
			strict[networking.Ingress](t, text)
		case "HorizontalPodAutoscaler":
			strict[autoscaling.HorizontalPodAutoscaler](t, text)
		case "Namespace":
			strict[core.Namespace](t, text)
		}
	}
	if len(o.workloads) != 6 {
		t.Fatalf("%s: %d Deployments and StatefulSets, want 6", name, len(o.workloads))
	}
	return o
}

func strict[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict(text, &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// must ends the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
