package proto

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestIndexSubject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ user, replica, want string }{
		{UserGateway, "AB12", "grasp.query.index.gateway.AB12.read"},
		{UserIngest, "x", "grasp.query.index.ingest.x.read"},
		{UserIngest, strings.Repeat("x", 64), "grasp.query.index.ingest." + strings.Repeat("x", 64) + ".read"},
		{UserIngest, strings.Repeat("x", 65), ""},
		{UserIngest, "", ""},
		{UserIngest, "a.b", ""},
		{UserIngest, "*", ""},
		{UserIngest, ">", ""},
		{UserIngest, "a b", ""},
		{UserIngest, "a\r\nPUB", ""},
		{UserIngest, "ä", ""},
	} {
		got, err := IndexSubject(c.user, c.replica, IndexReads)
		if (err == nil) != (c.want != "") || err == nil && got != c.want || err != nil && !errors.Is(err, ErrSubject) {
			t.Errorf("%q: %q, %v; want %q", c.replica, got, err, c.want)
		}
	}
}

// TestIndexCopies: whoever decides takes nothing from those who are open to the world.
func TestIndexCopies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ services, gives, takes string }{
		{"gateway", "gateway", "gateway ingest"},
		{"ingest", "ingest", "ingest"},
		{"ingest gateway", "ingest", "ingest"},
		{"discovery gateway", "gateway", "gateway ingest"},
		{"relayconn", "", ""},
		{"", "", ""},
	} {
		gives, takes := IndexCopies(strings.Fields(c.services))
		if gives != c.gives || strings.Join(takes, " ") != c.takes {
			t.Errorf("%s: gives as %q, takes from %q", c.services, gives, takes)
		}
	}
}

// TestIndexPermissions: each may ask and answer on the subjects that it uses, and a gateway cannot
// answer in the place of ingest.
func TestIndexPermissions(t *testing.T) {
	t.Parallel()
	below := func(user string) []string { return []string{IndexOffers(user), IndexOffers(user) + ".>"} }
	for _, c := range []struct {
		user      string
		asks      []string
		notAnswer []string
	}{
		{UserGateway, []string{UserGateway, UserIngest}, []string{UserIngest}},
		{UserIngest, []string{UserIngest}, []string{UserGateway}},
	} {
		p := PermissionsOf(c.user)
		if !p.Answers {
			t.Errorf("%s may not answer", c.user)
		}
		for _, subject := range below(c.user) {
			if !slices.Contains(p.Subscribe, subject) {
				t.Errorf("%s may not listen to %s", c.user, subject)
			}
		}
		for _, asked := range c.asks {
			for _, subject := range below(asked) {
				if !slices.Contains(p.Publish, subject) {
					t.Errorf("%s may not ask on %s", c.user, subject)
				}
			}
		}
		for _, other := range c.notAnswer {
			for _, subject := range below(other) {
				if slices.Contains(p.Subscribe, subject) {
					t.Errorf("%s may answer on %s", c.user, subject)
				}
			}
		}
	}
}
