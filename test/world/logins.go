package world

import (
	"maps"
	"path/filepath"
	"testing"

	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/logins"
)

// Guarded is a NATS server that lets in only those who have a login, and holds them to what each
// may do.
type Guarded struct {
	*bustest.NATS
	Folder string // of the logins, as `tendril logins` makes it
	t      testing.TB
}

// GuardedNATS starts one. The test fails if the server has refused anything to anybody by its end.
func GuardedNATS(t testing.TB, users ...string) *Guarded {
	t.Helper()
	folder := Folder(t)
	if err := logins.Init(folder, append(logins.Default(), users...)...); err != nil {
		t.Fatal(err)
	}
	g := &Guarded{NATS: bustest.WithUsers(t, filepath.Join(folder, logins.UsersFile)), Folder: folder, t: t}
	t.Cleanup(func() {
		for _, line := range g.Refused() {
			t.Errorf("NATS has refused: %s", line)
		}
	})
	return g
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
