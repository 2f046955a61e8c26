package manifests

import (
	"net/netip"
	"slices"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// peer is one end of a connection: a pod in a namespace, or an address outside of the cluster.
type peer struct {
	pod       labels.Set
	namespace labels.Set // labels of it; nil: an address
	address   netip.Addr
	ports     []core.ContainerPort
}

// TestNetworkPolicies works out from the policies, as a network plugin does, who may connect to
// whom.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	own := labels.Set{"kubernetes.io/metadata.name": "tendril"}
	outside := func(namespace string, more labels.Set) peer {
		return peer{pod: labels.Set{"app": "x"}, namespace: labels.Merge(labels.Set{"kubernetes.io/metadata.name": namespace}, more)}
	}
	for _, o := range overlays(t) {
		peers := map[string]peer{
			"an operator":     {pod: labels.Set{"tendril.dev/operator": "true"}, namespace: own},
			"another pod":     {pod: labels.Set{"app": "x"}, namespace: own},
			"ingress":         outside("ingress-nginx", nil),
			"monitoring":      outside("monitoring", labels.Set{"tendril.dev/monitoring": "true"}),
			"DNS":             outside("kube-system", nil),
			"an impostor":     {pod: labels.Set{"app.kubernetes.io/name": "tendril", "app.kubernetes.io/component": "ingest"}, namespace: labels.Set{"kubernetes.io/metadata.name": "x"}},
			"a public relay":  {address: netip.MustParseAddr("1.1.1.1")},
			"a public relay6": {address: netip.MustParseAddr("2606:4700::1111")},
			"metadata":        {address: netip.MustParseAddr("169.254.169.254")},
			"the API server":  {address: netip.MustParseAddr("10.96.0.1")},
			"a private6":      {address: netip.MustParseAddr("fd00::1")},
		}
		for _, w := range o.workloads {
			peers[w.name] = peer{pod: w.pod.Labels, namespace: own, ports: w.container().Ports}
		}
		services := []string{"gateway", "ingest", "purgatory", "discovery", "relayconn"}
		check := func(from, to string, port int32, want bool) {
			t.Helper()
			a, b := peers[from], peers[to]
			if got := allowed(t, o.policies, true, a, b, port) && allowed(t, o.policies, false, b, a, port); got != want {
				t.Errorf("%s: %s may connect to port %d of %s: %v, want %v", o.name, from, port, to, got, want)
			}
		}
		for _, from := range services {
			check(from, "nats", 4222, true)
			check(from, "DNS", 53, true)
			check(from, "nats", 6222, false)
			check(from, "nats", 8222, false)
			check(from, "purgatory", 7336, from == "gateway" || from == "purgatory")
			check(from, "gateway", 7334, false)
			for _, to := range services {
				check(from, to, 7335, false)
			}
			out := from == "relayconn" || from == "purgatory"
			check(from, "a public relay", 443, out)
			check(from, "a public relay6", 7777, out)
			for _, last := range []string{"10.255.255.255", "100.127.255.255", "127.255.255.255", "172.31.255.255", "192.168.255.255", "198.19.255.255"} {
				peers[last] = peer{address: netip.MustParseAddr(last)}
				check(from, last, 443, false)
			}
			for _, to := range []string{"metadata", "the API server", "a private6", "another pod", "monitoring"} {
				check(from, to, 443, false)
			}
			check("monitoring", from, 7335, true)
			check("another pod", from, 7335, false)
		}
		check("nats", "nats", 6222, true)
		check("nats", "nats", 4222, false)
		check("nats", "DNS", 53, true)
		check("nats", "a public relay", 443, false)
		check("an operator", "nats", 4222, true)
		check("an operator", "DNS", 53, true)
		check("an operator", "nats", 6222, false)
		check("an operator", "purgatory", 7336, false)
		check("an operator", "a public relay", 443, false)
		check("ingress", "gateway", 7334, true)
		check("ingress", "gateway", 7335, false)
		check("monitoring", "nats", 8222, true)
		for _, from := range []string{"ingress", "monitoring", "another pod", "an impostor", "DNS", "a public relay"} {
			check(from, "nats", 4222, false)
			check(from, "nats", 6222, false)
			check(from, "purgatory", 7336, false)
		}
		check("a public relay", "gateway", 7334, true)
	}
}

// allowed reports whether the policies of one end let the other through: of the sender with egress
// true, of the receiver otherwise. port is the receiver's.
func allowed(t *testing.T, policies []networking.NetworkPolicy, egress bool, one, other peer, port int32) bool {
	t.Helper()
	kind := networking.PolicyTypeIngress
	if egress {
		kind = networking.PolicyTypeEgress
	}
	isolated := false
	for _, p := range policies {
		if one.namespace["kubernetes.io/metadata.name"] != "tendril" || !matches(t, &p.Spec.PodSelector, one.pod) || !slices.Contains(p.Spec.PolicyTypes, kind) {
			continue
		}
		isolated = true
		if egress {
			for _, rule := range p.Spec.Egress {
				if anyPeer(t, rule.To, other) && anyPort(rule.Ports, other.ports, port) {
					return true
				}
			}
			continue
		}
		for _, rule := range p.Spec.Ingress {
			if anyPeer(t, rule.From, other) && anyPort(rule.Ports, one.ports, port) {
				return true
			}
		}
	}
	return !isolated
}

func anyPort(rules []networking.NetworkPolicyPort, named []core.ContainerPort, port int32) bool {
	for _, r := range rules {
		if r.Port.IntVal == port {
			return true
		}
		for _, n := range named {
			if n.Name == r.Port.StrVal && n.ContainerPort == port {
				return true
			}
		}
	}
	return len(rules) == 0
}

func anyPeer(t *testing.T, rules []networking.NetworkPolicyPeer, p peer) bool {
	t.Helper()
	for _, r := range rules {
		switch {
		case r.IPBlock != nil:
			// Pods have addresses of private networks, which no block of ours holds.
			if p.namespace == nil && inBlock(*r.IPBlock, p.address) {
				return true
			}
		case p.namespace == nil:
		case r.NamespaceSelector != nil:
			if matches(t, r.NamespaceSelector, p.namespace) && (r.PodSelector == nil || matches(t, r.PodSelector, p.pod)) {
				return true
			}
		case p.namespace["kubernetes.io/metadata.name"] == "tendril" && matches(t, r.PodSelector, p.pod):
			return true
		}
	}
	return len(rules) == 0
}

func inBlock(b networking.IPBlock, a netip.Addr) bool {
	for _, e := range b.Except {
		if netip.MustParsePrefix(e).Contains(a) {
			return false
		}
	}
	return netip.MustParsePrefix(b.CIDR).Contains(a)
}
