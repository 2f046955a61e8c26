package manifests

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
			"operator":   {pod: labels.Set{"tendril.dev/operator": "true"}, namespace: own},
			"other":      {pod: labels.Set{"app": "x"}, namespace: own},
			"ingress":    outside("ingress-nginx", nil),
			"monitoring": outside("monitoring", labels.Set{"tendril.dev/monitoring": "true"}),
			"dns":        outside("kube-system", nil),
			"impostor":   {pod: labels.Set{"app.kubernetes.io/name": "tendril", "app.kubernetes.io/component": "ingest"}, namespace: labels.Set{"kubernetes.io/metadata.name": "x"}},
			"relay":      {address: netip.MustParseAddr("1.1.1.1")},
			"relay6":     {address: netip.MustParseAddr("2606:4700::1111")},
			"metadata":   {address: netip.MustParseAddr("169.254.169.254")},
			"api":        {address: netip.MustParseAddr("10.96.0.1")},
			"private6":   {address: netip.MustParseAddr("fd00::1")},
		}
		for _, w := range o.workloads {
			peers[w.name] = peer{pod: w.pod.Labels, namespace: own, ports: w.container().Ports}
		}
		// ">" means that the first may connect to the second, "!" that it may not.
		check := func(rows string, names ...string) {
			t.Helper()
			for row := range strings.FieldsSeq(strings.NewReplacer(names...).Replace(rows)) {
				part := regexp.MustCompile(`^(.+)([>!])(.+):(\d+)$`).FindStringSubmatch(row)
				port, err := strconv.Atoi(part[4])
				must(t, err)
				a, b := peers[part[1]], peers[part[3]]
				if got := allowed(t, o.policies, true, a, b, int32(port)) && allowed(t, o.policies, false, b, a, int32(port)); got != (part[2] == ">") {
					t.Errorf("%s: %s is %v", o.name, row, got)
				}
			}
		}
		for _, last := range strings.Fields("10.255.255.255 100.127.255.255 127.255.255.255 172.31.255.255 192.168.255.255 198.19.255.255") {
			peers[last] = peer{address: netip.MustParseAddr(last)}
		}
		for _, service := range []string{"gateway", "ingest", "purgatory", "discovery", "relayconn"} {
			check(`IT>nats:4222 IT>dns:53 IT!nats:6222 IT!nats:8222 IT!gateway:7334 IT!gateway:7335 IT!ingest:7335 IT!purgatory:7335 IT!discovery:7335
				IT!relayconn:7335 IT!10.255.255.255:443 IT!100.127.255.255:443 IT!127.255.255.255:443 IT!172.31.255.255:443 IT!192.168.255.255:443
				IT!198.19.255.255:443 IT!metadata:443 IT!api:443 IT!private6:443 IT!other:443 IT!monitoring:443 monitoring>IT:7335 other!IT:7335`, "IT", service)
		}
		check(`gateway>purgatory:7336 purgatory>purgatory:7336 ingest!purgatory:7336 discovery!purgatory:7336 relayconn!purgatory:7336
			relayconn>relay:443 purgatory>relay:443 gateway!relay:443 ingest!relay:443 discovery!relay:443
			relayconn>relay6:7777 purgatory>relay6:7777 gateway!relay6:7777 ingest!relay6:7777 discovery!relay6:7777
			nats>nats:6222 nats!nats:4222 nats>dns:53 nats!relay:443
			operator>nats:4222 operator>dns:53 operator!nats:6222 operator!purgatory:7336 operator!relay:443
			ingress>gateway:7334 ingress!gateway:7335 monitoring>nats:8222 relay>gateway:7334`)
		for _, stranger := range []string{"ingress", "monitoring", "other", "impostor", "dns", "relay"} {
			check("IT!nats:4222 IT!nats:6222 IT!purgatory:7336", "IT", stranger)
		}
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
