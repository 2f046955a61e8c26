package main

import (
	"errors"
	"slices"
	"testing"
)

func TestLoaderOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, load, address string
		there               []string
		want                []string
	}{
		{"a command of one's own", "ssh node ctr-import", "/run/c.sock", []string{"kind"}, []string{"ssh", "node", "ctr-import"}},
		{"containerd", "", "/run/c.sock", []string{"kind"}, []string{"ctr", "images", "import"}},
		{"kind", "", "", []string{"minikube", "kind"}, []string{"kind", "load", "image-archive"}},
		{"minikube", " ", "", []string{"minikube"}, []string{"minikube", "image", "load"}},
		{"nothing", "", "", nil, nil},
	} {
		got, err := loaderOf(c.load, func(string) string { return c.address }, func(program string) (string, error) {
			if slices.Contains(c.there, program) {
				return program, nil
			}
			return "", errors.New("not found")
		})
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := optionsFrom(func(string) string { return "" })
	if err != nil || o.events != 20000 || o.relays != 41 || len(o.overlays) != 2 || len(o.steps) != 5 || o.keep {
		t.Errorf("without an environment the options are %+v, %v", o, err)
	}
	set := map[string]string{"K8S_OVERLAYS": "local", "K8S_STEPS": "sizes", "K8S_KEEP": "1"}
	if o, err = optionsFrom(func(name string) string { return set[name] }); err != nil || o.events != 100000 || len(o.overlays) != 1 || !o.keep {
		t.Errorf("the options are %+v, %v", o, err)
	}
	for name, value := range map[string]string{"K8S_STEPS": "story,unknown", "K8S_RELAYS": "many", "K8S_RATE": "0"} {
		if _, err := optionsFrom(func(n string) string {
			if n == name {
				return value
			}
			return ""
		}); err == nil {
			t.Errorf("%s=%s is taken", name, value)
		}
	}
}
