// Package guard stands before everything that names what a private service has (GRASP-08), in one
// place. Who gets past it holds a [Proof], and only a proof opens [Locked] content. On a
// public service everyone gets one.
//
// The guard decides by the request alone, before anything is looked up: who is refused learns
// nothing of what is here. The relay is not behind it: there a client proves who it is by NIP-42, see
// package relay.
package guard

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
)

const (
	// window is how far the time of a proof may be from ours, either way. A proof may be used again
	// in that time: git makes several requests with one.
	window = time.Minute
	// maxProof bounds the event of a proof as it is written, in bytes.
	maxProof = 8 << 10
)

// Proof says that who makes a request may read what is here. Its zero value proves nothing.
type Proof struct{ valid bool }

// Locked is content that only a proof gives out.
type Locked[T any] struct{ content T }

// Lock puts content behind the guard.
func Lock[T any](content T) Locked[T] { return Locked[T]{content} }

// Open gives the content out.
func (l Locked[T]) Open(p Proof) T {
	if !p.valid {
		panic("guard: content was to be given out without a proof")
	}
	return l.content
}

// Guard checks requests.
type Guard struct {
	Circle bans.Circle
	Domain string // of the service
	Origin string // that proofs name
	Base   string // path below which everything lies; "" is the root
}

// Public is the proof that everyone has, if the service is public.
func (g *Guard) Public() (Proof, bool) { return Proof{!g.Circle.IsPrivate()}, !g.Circle.IsPrivate() }

// Check checks who makes a request.
func (g *Guard) Check(r *http.Request) (Proof, bool) {
	if p, public := g.Public(); public {
		return p, true
	}
	is := g.isMember(r, time.Now())
	return Proof{is}, is
}

// isMember reports whether a member has signed the request (NIP-98). Whose key it is, is looked at
// last: a wrong signature takes as long for a member's key as for a stranger's, so that no time tells
// who the members are.
func (g *Guard) isMember(r *http.Request, now time.Time) bool {
	given := r.Header.Values("Authorization")
	if len(given) != 1 {
		return false
	}
	encoded, ok := token(given[0])
	if !ok || len(encoded) > maxProof {
		return false
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	ev := new(nostr.Event)
	if err != nil || ev.UnmarshalJSON(data) != nil {
		return false
	}
	root := Root(r.RequestURI, g.Base)
	if _, err := nostr.ParseRepositoryPath(r.URL.EscapedPath()); err == nil && root == g.Base+"/" {
		return false // in this form no proof names a repository, and the proof for all else must not open it
	}
	return ev.Kind == gonostr.KindHTTPAuth && only(ev, "u") == g.Origin+root &&
		only(ev, "method") == http.MethodGet && ev.CreatedAt.Time().Sub(now).Abs() <= window &&
		nostr.HasID(ev) && nostr.Signed(ev) && g.Circle.Has(ev.PubKey)
}

// token is the base64 text in the header Authorization: behind "Nostr", or as the password behind
// "Basic", for git before 2.46 has no other way.
func token(header string) (string, bool) {
	scheme, rest, _ := strings.Cut(header, " ")
	rest = strings.Trim(rest, " ")
	switch strings.ToLower(scheme) {
	case "nostr":
		return rest, true
	case "basic":
		if len(rest) > 2*maxProof {
			return "", false
		}
		both, err := base64.StdEncoding.DecodeString(rest)
		_, password, is := strings.Cut(string(both), ":")
		return password, is && err == nil
	}
	return "", false
}

// only is the value of the one tag of that name; "" if there are none or several.
func only(ev *nostr.Event, name string) (value string) {
	found := 0
	for _, tag := range ev.Tags {
		if len(tag) > 0 && tag[0] == name {
			if found++; len(tag) > 1 {
				value = tag[1]
			}
		}
	}
	if found != 1 {
		return ""
	}
	return value
}

// Root is the path that the proof for an address names: that of the repository, which is the first
// two segments as the request writes them, or the base path with a slash where it is none. Nothing
// is decoded. target is that of the request.
func Root(target, base string) string {
	path, _, _ := strings.Cut(target, "?")
	below, _ := strings.CutPrefix(path, base+"/")
	owner, rest, _ := strings.Cut(below, "/")
	repository, _, _ := strings.Cut(rest, "/")
	if strings.HasPrefix(owner, "npub1") && strings.HasSuffix(repository, ".git") {
		return base + "/" + owner + "/" + repository
	}
	return base + "/"
}

// Refuse answers who has proved nothing, always in the same way. A proof is also taken as a password,
// but that is offered only to git itself: a browser, and git libraries, would ask a person for one.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Length", "0") // HEAD says so too
	h.Add("WWW-Authenticate", fmt.Sprintf(`Nostr realm="%s", method="GET"`, g.Domain))
	if agent := r.UserAgent(); strings.HasPrefix(agent, "git/") && !strings.Contains(agent, "libgit2") {
		h.Add("WWW-Authenticate", fmt.Sprintf(`Basic realm="%s"`, g.Domain))
	}
	w.WriteHeader(http.StatusUnauthorized)
}
