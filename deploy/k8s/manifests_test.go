package manifests

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// each runs check for every workload of every overlay.
func each(t *testing.T, check func(t *testing.T, o overlay, w workload)) {
	t.Helper()
	for _, o := range overlays(t) {
		for _, w := range o.workloads {
			t.Run(o.name+"/"+w.name, func(t *testing.T) { check(t, o, w) })
		}
	}
}

func TestNoContainerHasPrivileges(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, o overlay, w workload) {
		pod, c := w.pod.Spec.SecurityContext, w.container().SecurityContext
		if len(w.pod.Spec.Containers) != 1 || len(w.pod.Spec.InitContainers) != 0 {
			t.Error("want one container")
		}
		if pod == nil || c == nil {
			t.Fatal("no security context")
		}
		for what, ok := range map[string]bool{
			"runs as root":               isTrue(pod.RunAsNonRoot) && pod.RunAsUser != nil && *pod.RunAsUser == 65532,
			"no seccomp profile":         pod.SeccompProfile != nil && pod.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault,
			"writable root file system":  isTrue(c.ReadOnlyRootFilesystem),
			"may gain privileges":        c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation,
			"has capabilities":           c.Capabilities != nil && slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}) && len(c.Capabilities.Add) == 0,
			"has a token of Kubernetes":  w.pod.Spec.AutomountServiceAccountToken != nil && !*w.pod.Spec.AutomountServiceAccountToken,
			"no account of its own":      o.accounts[w.name].Name == w.pod.Spec.ServiceAccountName,
			"is in the node's namespace": !w.pod.Spec.HostNetwork && !w.pod.Spec.HostPID && !w.pod.Spec.HostIPC,
		} {
			if !ok {
				t.Error(what)
			}
		}
		for _, v := range w.pod.Spec.Volumes {
			if v.HostPath != nil {
				t.Errorf("volume %s is a folder of the node", v.Name)
			}
			if v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil {
				t.Errorf("volume %s has no bound", v.Name)
			}
		}
	})
}

func isTrue(b *bool) bool { return b != nil && *b }

// The garbage collector must work harder before the kernel ends the process; and git processes of
// purgatory need room beside it.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ overlay, w workload) {
		c := w.container()
		limit, requests := c.Resources.Limits[core.ResourceMemory], c.Resources.Requests
		if limit.IsZero() || requests.Memory().IsZero() || requests.Cpu().IsZero() {
			t.Fatalf("resources: %v", c.Resources)
		}
		soft, ok := env(c, "GOMEMLIMIT")
		if !ok {
			t.Fatal("no GOMEMLIMIT")
		}
		q, err := resource.ParseQuantity(strings.TrimSuffix(soft, "B"))
		must(t, err)
		least := limit.Value() / 2
		if w.name == "purgatory" {
			least = limit.Value() / 5
		}
		if q.Value() < least || q.Value() > limit.Value()*9/10 || q.Value() < requests.Memory().Value() {
			t.Errorf("GOMEMLIMIT is %s, requested are %s, the limit is %s", soft, requests.Memory(), &limit)
		}
	})
}

func env(c core.Container, name string) (string, bool) {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value, true
		}
	}
	return "", false
}

func TestProbesAndStop(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ overlay, w workload) {
		c := w.container()
		for name, p := range map[string]*core.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			if p == nil || p.HTTPGet == nil {
				t.Errorf("no %s probe", name)
				continue
			}
			if _, ok := w.port(p.HTTPGet.Port.StrVal); !ok {
				t.Errorf("the %s probe asks port %q, which is not there", name, p.HTTPGet.Port.StrVal)
			}
		}
		if w.stateful {
			return
		}
		if path := c.LivenessProbe.HTTPGet.Path; path != "/healthz" {
			t.Errorf("liveness asks %s: a service that waits for others would be killed", path)
		}
		wait, _ := env(c, "NGIT_SHUTDOWN_WAIT")
		needs, err := time.ParseDuration(wait)
		must(t, err)
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			needs += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
		}
		if has := time.Duration(*w.pod.Spec.TerminationGracePeriodSeconds) * time.Second; has < needs+5*time.Second {
			t.Errorf("%s to stop, and it takes up to %s", has, needs)
		}
		if u := w.update.RollingUpdate; u == nil || u.MaxUnavailable.IntValue() != 0 || u.MaxUnavailable.StrVal != "" {
			t.Error("an update takes pods away before others are ready")
		}
	})
}

func TestEveryWorkloadHasOneBudget(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, o overlay, w workload) {
		found := 0
		for _, b := range o.budgets {
			if matches(t, b.Spec.Selector, w.pod.Labels) {
				found++
				if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 {
					t.Errorf("%s: want maxUnavailable 1, which a single pod does not turn into a node that cannot be drained", b.Name)
				}
			}
		}
		if found != 1 {
			t.Errorf("%d budgets", found)
		}
		spread := w.pod.Spec.TopologySpreadConstraints
		if len(spread) != 1 || !matches(t, spread[0].LabelSelector, w.pod.Labels) {
			t.Errorf("spread: %v", spread)
		}
		want := core.ScheduleAnyway
		if o.name == "production" || o.name == "components" {
			want = core.DoNotSchedule
		}
		if len(spread) == 1 && spread[0].WhenUnsatisfiable != want {
			t.Errorf("spread is %s, want %s", spread[0].WhenUnsatisfiable, want)
		}
	})
}

func matches(t *testing.T, s *meta.LabelSelector, l labels.Set) bool {
	t.Helper()
	selector, err := meta.LabelSelectorAsSelector(s)
	must(t, err)
	return selector.Matches(l)
}

// What a pod has mounted or reads is there, and each service has its own login and no other.
func TestVolumesAndLogins(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, o overlay, w workload) {
		names := map[string]bool{"data": w.stateful}
		var secrets []string
		for _, v := range w.pod.Spec.Volumes {
			names[v.Name] = true
			switch {
			case v.Secret != nil:
				secrets = append(secrets, v.Secret.SecretName)
			case v.PersistentVolumeClaim != nil:
				if _, ok := o.claims[v.PersistentVolumeClaim.ClaimName]; !ok {
					t.Errorf("no claim %s", v.PersistentVolumeClaim.ClaimName)
				}
			case v.Projected != nil:
				for _, source := range v.Projected.Sources {
					if source.Secret != nil {
						secrets = append(secrets, source.Secret.Name)
					}
					if source.ConfigMap != nil && o.configMaps[source.ConfigMap.Name].Name == "" {
						t.Errorf("no ConfigMap %s", source.ConfigMap.Name)
					}
				}
			}
		}
		for _, m := range w.container().VolumeMounts {
			if !names[m.Name] {
				t.Errorf("no volume %s", m.Name)
			}
			if m.SubPath != "" {
				t.Errorf("%s is mounted by a subPath: changes would not arrive", m.Name)
			}
		}
		want := "login-" + w.name
		if w.stateful {
			want = "nats-users"
		}
		if !slices.Equal(secrets, []string{want}) || o.secrets[want].Name == "" {
			t.Errorf("mounted are the secrets %q, want %s", secrets, want)
		}
		for _, e := range w.container().Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && o.secrets[e.ValueFrom.SecretKeyRef.Name].Name == "" {
				t.Errorf("%s: no secret %s", e.Name, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	})
}

var settingName = regexp.MustCompile("(?m)^\\| `(NGIT_[A-Z0-9_]+)` \\|")

// Tendril only warns of a name that is no setting, and goes on with the default.
func TestSettingsExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/configuration.md")
	must(t, err)
	settings := map[string]bool{}
	for _, m := range settingName.FindAllStringSubmatch(string(page), -1) {
		settings[m[1]] = true
	}
	if len(settings) < 50 {
		t.Fatalf("only %d settings in docs/configuration.md", len(settings))
	}
	check := func(t *testing.T, name string) {
		t.Helper()
		if strings.HasPrefix(name, "NGIT_") && !settings[name] {
			t.Errorf("there is no setting %s", name)
		}
	}
	each(t, func(t *testing.T, o overlay, w workload) {
		c := w.container()
		var defined []string
		for _, e := range c.Env {
			check(t, e.Name)
			for _, m := range regexp.MustCompile(`\$\(([^)]*)\)`).FindAllStringSubmatch(e.Value, -1) {
				if !slices.Contains(defined, m[1]) {
					t.Errorf("%s uses $(%s), which is not defined before it", e.Name, m[1])
				}
			}
			defined = append(defined, e.Name)
		}
		for _, from := range c.EnvFrom {
			shared := o.configMaps[from.ConfigMapRef.Name].Data
			for name := range shared {
				check(t, name)
			}
			replicas := map[string]string{"local": "1"}[o.name]
			if replicas == "" {
				replicas = "3"
			}
			if shared["NGIT_DOMAIN"] == "" || shared["NGIT_NATS_REPLICAS"] != replicas {
				t.Errorf("settings: %v", shared)
			}
			// A lone NATS server loses the claims when it restarts, which takes some 6 s; git
			// requests wait gitquery.HandOverWait (30s) for what a dead worker held.
			ttl, _ := time.ParseDuration(cmp.Or(shared["NGIT_WORKER_TTL"], "10s"))
			if ttl < 10*time.Second || ttl >= 30*time.Second || replicas == "1" && ttl < 20*time.Second {
				t.Errorf("NGIT_WORKER_TTL is %v with %s NATS servers", ttl, replicas)
			}
		}
	})
}

func TestNATSSyncsEveryWrite(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, o overlay, w workload) {
		if !w.stateful {
			return
		}
		for _, source := range w.pod.Spec.Volumes[1].Projected.Sources {
			if source.ConfigMap == nil {
				continue
			}
			conf := o.configMaps[source.ConfigMap.Name].Data["server.conf"]
			for _, line := range []string{"\n  sync_interval: always\n", "\nmax_payload: 1MB\n", "\ninclude users.conf\n"} {
				if !strings.Contains(conf, line) {
					t.Errorf("server.conf has no %q", line)
				}
			}
			return
		}
		t.Error("no configuration")
	})
}

// An image without a fixed version is another one after a node was replaced.
func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	module, err := os.ReadFile("../../go.mod")
	must(t, err)
	version := regexp.MustCompile(`github.com/nats-io/nats-server/v2 v(\S+)`).FindStringSubmatch(string(module))
	each(t, func(t *testing.T, o overlay, w workload) {
		image := w.container().Image
		_, tag, tagged := strings.Cut(image, ":")
		if !tagged || tag == "latest" {
			t.Errorf("image %s", image)
		}
		if w.stateful && !strings.HasPrefix(o.name, "local") && image != "nats:"+version[1]+"-alpine" {
			t.Errorf("image %s, and the version that is tested is %s", image, version[1])
		}
	})
}
