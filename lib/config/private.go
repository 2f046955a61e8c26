package config

import (
	"net/url"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// Peer is another private service with which this one syncs.
type Peer struct {
	Relay nostr.RelayURL
	Key   string // with which it proves who it is, 64 hex digits
}

// service is the peer's address.
func (p Peer) service() string {
	_, address, _ := strings.Cut(string(p.Relay), "://")
	return address
}

// Peers are all peers of a service.
type Peers []Peer

// Have reports whether a URL, of a relay or of a repository, leads to a peer: to its host, below its
// path, and over TLS unless the peer is on this machine. Our proofs and what is private go there
// alone.
func (peers Peers) Have(address string) bool {
	scheme, _, _ := strings.Cut(address, "://")
	secure := scheme == "https" || scheme == "wss"
	return slices.ContainsFunc(peers, func(peer Peer) bool {
		return (secure || !peer.Relay.Secure()) && nostr.OnDomain(address, peer.service())
	})
}

// Peers reads NGIT_PRIVATE_PEERS.
func (p Private) Peers() (peers Peers, err error) {
	for _, given := range p.PrivatePeers {
		at := strings.LastIndexByte(given, '=')
		var peer Peer
		if at >= 0 {
			peer.Key, err = ParseNpub(given[at+1:])
		}
		if at >= 0 && err == nil {
			peer.Relay, err = nostr.NormalizeRelayURL(given[:at])
		}
		host, _, _ := strings.Cut(peer.service(), "/")
		if _, noService := nostr.NormalizeService(peer.service()); at < 0 || err != nil || noService != nil ||
			!peer.Relay.Secure() && !isThisMachine(host) {
			return nil, &Error{"NGIT_PRIVATE_PEERS", given,
				"want the addresses and keys of private services, like wss://git.example.com=npub1…, comma-separated"}
		}
		peers = append(peers, peer)
	}
	return peers, nil
}

// Members are the keys that NGIT_PRIVATE_MEMBERS and NGIT_PRIVATE_PEERS name. What an operator has
// changed since is not among them.
func (p Private) Members() map[string]bool {
	members := map[string]bool{}
	for _, npub := range p.PrivateMembers {
		if key, err := ParseNpub(npub); err == nil {
			members[key] = true
		}
	}
	peers, _ := p.Peers() // checked
	for _, peer := range peers {
		members[peer.Key] = true
	}
	return members
}

// Origin is the origin that proofs of members name (NGIT_PRIVATE_PUBLIC_ORIGIN).
func (s Settings) Origin() string {
	if s.PrivateOrigin != "" {
		return strings.ToLower(strings.TrimRight(s.PrivateOrigin, "/"))
	}
	return strings.TrimSuffix(s.URL("http"), s.BasePath)
}

// private checks what a private service is. Settings that would open it, or that ask for protection
// without its mode, stop the start.
func (s Settings) private() error {
	if !s.PrivateMode {
		for _, asks := range []struct {
			name string
			list []string
		}{{"NGIT_PRIVATE_MEMBERS", s.PrivateMembers}, {"NGIT_PRIVATE_PEERS", s.PrivatePeers}} {
			if len(asks.list) > 0 {
				return &Error{asks.name, strings.Join(asks.list, ","),
					"NGIT_PRIVATE_MODE is not true, and everyone could read what is here; set it, or unset this"}
			}
		}
		return nil
	}
	if len(s.PrivateMembers) == 0 {
		return &Error{"NGIT_PRIVATE_MEMBERS", "", "is empty: a private service wants at least one member, npub1…"}
	}
	for _, given := range s.PrivateMembers {
		if _, err := ParseNpub(given); err != nil {
			return &Error{"NGIT_PRIVATE_MEMBERS", given, "want npubs, comma-separated"}
		}
	}
	peers, err := s.Peers()
	if err != nil {
		return err
	}
	if s.PrivateOrigin != "" {
		u, err := url.Parse(s.PrivateOrigin)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
			strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return &Error{"NGIT_PRIVATE_PUBLIC_ORIGIN", s.PrivateOrigin,
				"want a scheme and a host, like https://git.example.com"}
		}
	}
	if s.ContributorPRs {
		return &Error{"NGIT_GRASP06_ENABLE", "true",
			"NGIT_PRIVATE_MODE is true, and anyone may push to /prs/ by GRASP-06; unset one of the two"}
	}
	if s.ArchiveAll {
		return &Error{"NGIT_ARCHIVE_ALL", "true",
			"NGIT_PRIVATE_MODE is true, and a private service archives its peers alone (NGIT_ARCHIVE_GRASP_SERVICES); unset " +
				"one of the two"}
	}
	for _, given := range s.ArchiveServices {
		if !peers.Have("https://"+given) && !peers.Have("http://"+given) {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given,
				"NGIT_PRIVATE_MODE is true, and this is no peer of NGIT_PRIVATE_PEERS: a private service archives its peers " +
					"alone; take it out"}
		}
	}
	return nil
}

// WasPrivate is the error of a start without private mode where data lies that was private.
func WasPrivate(where string) error {
	return &Error{"NGIT_PRIVATE_MODE", "",
		"is not true, but what lies " + where + " was private: nothing was started; set it again; or, to let everyone read " +
			"all of that, start once more with it, run `tendril make-public --everything`, and start without it"}
}
