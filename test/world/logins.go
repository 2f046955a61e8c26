package world

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/lib/logins"
	"tendril.dev/test/fixture/nettest"
)

// Guarded is a NATS server that lets in only those who have a login, and holds them to what each
// may do.
type Guarded struct {
	*nettest.NATS
	Folder string // of the logins, as `tendril logins` makes it
	t      testing.TB

	reloaded bool
}

// GuardedNATS starts one. The test fails if the server has refused anything to anybody by its end.
func GuardedNATS(t testing.TB, users ...string) *Guarded {
	t.Helper()
	folder := Folder(t)
	must(t, logins.Init(folder, append(logins.Default(), users...)...))
	g := &Guarded{NATS: nettest.NewNATS(t, filepath.Join(folder, logins.UsersFile)), Folder: folder, t: t}
	t.Cleanup(func() {
		for _, line := range g.Refused() {
			if !g.reloaded || !isAnswer(line) {
				t.Errorf("NATS has refused: %s", line)
			}
		}
	})
	return g
}

// Reload lets the server read its users again. It forgets who may answer whom by that: an answer to
// a question from before is refused, and the question is asked again.
func (g *Guarded) Reload() {
	g.t.Helper()
	g.reloaded = true
	g.NATS.Reload()
}

// isAnswer reports whether what the server has refused was an answer to a question: within an
// account, or to another one.
func isAnswer(line string) bool {
	return strings.Contains(line, `Publish Violation - Subject "_INBOX.`) || strings.Contains(line, `Publish Violation - Subject "_R_.`)
}

// StartAs starts services in processes of their own, each with its login.
func (g *Guarded) StartAs(gitVolume string, settings map[string]string, services ...string) (all []*Replica) {
	g.t.Helper()
	for _, name := range services {
		all = append(all, StartReplica(g.t, name, g.URL, gitVolume, g.As(name, settings)))
	}
	return all
}

// As adds the login of a user to settings of a process.
func (g *Guarded) As(user string, more map[string]string) map[string]string {
	settings := maps.Clone(more)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["NGIT_NATS_LOGIN_FILE"] = logins.LoginFile(g.Folder, user)
	return settings
}
