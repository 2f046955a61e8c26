package logins_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

// folder has the logins of a new deployment.
func folder(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "logins")
	must(t, logins.Init(dir))
	return dir
}

// users are the users of a folder's users.conf, as NATS reads it, and their hashes.
func users(t *testing.T, dir string) map[string]string {
	t.Helper()
	options, err := natsserver.ProcessConfigFile(filepath.Join(dir, logins.UsersFile))
	must(t, err)
	found := map[string]string{}
	for _, u := range options.Users {
		found[u.Username] = u.Password
	}
	return found
}

func read(t *testing.T, dir, user string) logins.Login {
	t.Helper()
	login, err := logins.Read(logins.LoginFile(dir, user))
	must(t, err)
	return login
}

func accepts(users map[string]string, l logins.Login) bool {
	return bcrypt.CompareHashAndPassword([]byte(users[l.User]), []byte(l.Password)) == nil
}

// TestInitMakesLoginsOnce, which only their owner can read. Run again, it makes what is new, and
// writes what users may do in this version.
func TestInitMakesLoginsOnce(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, logins.UsersFile)
	conf, err := os.ReadFile(path)
	must(t, err)
	first, before := map[string]logins.Login{}, users(t, dir)
	for _, user := range logins.Default() {
		l := read(t, dir, user)
		first[user] = l
		if l.User != user || len(l.Password) != 26 || !accepts(before, l) || strings.Contains(string(conf), l.Password) {
			t.Errorf("%s: user %q, %d letters", user, l.User, len(l.Password))
		}
		info, err := os.Stat(logins.LoginFile(dir, user))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", user, info.Mode(), err)
		}
	}
	old := strings.ReplaceAll(string(conf), `"grasp.candidate.user"`, `"grasp.candidate"`)
	must(t, os.WriteFile(path, []byte(old), 0o600), logins.Init(dir))
	if now, err := os.ReadFile(path); err != nil || string(now) != string(conf) {
		t.Errorf("written again it differs, %v", err)
	}
	must(t, logins.Init(dir, proto.UserTendril))
	after := users(t, dir)
	if !accepts(after, read(t, dir, proto.UserTendril)) {
		t.Error("no login for another user")
	}
	if delete(after, proto.UserTendril); !maps.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	for user, l := range first {
		if read(t, dir, user) != l {
			t.Errorf("the login of %s was changed", user)
		}
	}
}

func TestRotateAndRetire(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	one, other := read(t, dir, "gateway"), read(t, dir, "ingest")
	must(t, logins.Rotate(dir, "gateway"))
	two, both := read(t, dir, "gateway"), users(t, dir)
	if two.User != "gateway-2" || logins.Role(two.User) != "gateway" || !accepts(both, one) || !accepts(both, two) || two.Password == one.Password {
		t.Errorf("after rotate: %s, of %v", two.User, both)
	}
	// As often as it is run: the names go on.
	must(t, logins.Rotate(dir))
	three := read(t, dir, "gateway")
	must(t, logins.Init(dir))
	if three.User != "gateway-3" || read(t, dir, "gateway") != three || read(t, dir, "ingest").User != "ingest-2" {
		t.Errorf("after two: %s", three.User)
	}
	must(t, logins.Retire(dir), logins.Retire(dir))
	left := users(t, dir)
	if !accepts(left, three) || accepts(left, two) || accepts(left, one) || accepts(left, other) || len(left) != len(logins.Default()) {
		t.Errorf("after retire: %v", left)
	}
	must(t, logins.Rotate(dir, "gateway"))
	if user := read(t, dir, "gateway").User; user != "gateway-4" {
		t.Errorf("the name of a retired user is used again: %s", user)
	}
}

// TestInterrupted: init makes logins of what an interrupted command has left, which
// work, and takes none away.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(dir string) error{
		"no login written yet":  func(dir string) error { return os.Remove(logins.LoginFile(dir, "gateway")) },
		"users.conf was lost":   func(dir string) error { return os.Remove(filepath.Join(dir, logins.UsersFile)) },
		"a temporary file left": func(dir string) error { return os.WriteFile(filepath.Join(dir, ".users.conf.1"), nil, 0o600) },
		"an older login is back": func(dir string) error {
			old, err := os.ReadFile(logins.LoginFile(dir, "gateway"))
			return errors.Join(err, logins.Rotate(dir, "gateway"), logins.Retire(dir), os.WriteFile(logins.LoginFile(dir, "gateway"), old, 0o600))
		},
	} {
		dir := folder(t)
		other := read(t, dir, "ingest")
		must(t, interrupt(dir), logins.Init(dir))
		now := users(t, dir)
		for _, user := range logins.Default() {
			if !accepts(now, read(t, dir, user)) {
				t.Errorf("%s: the login of %s does not work", name, user)
			}
		}
		if read(t, dir, "ingest") != other {
			t.Errorf("%s: a login that worked was replaced", name)
		}
		if retired := read(t, dir, "gateway"); name == "an older login is back" && retired.User != "gateway-3" {
			t.Errorf("%s: a password that was retired works again", retired.User)
		}
	}
}

// TestRefusedCommandsChangeNothing, and a foreign users.conf is not written over.
func TestRefusedCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	must(t, os.Remove(logins.LoginFile(dir, "gateway")))
	before := users(t, dir)
	for err, want := range map[error]string{
		logins.Retire(dir):                    "gateway.login: no such file",
		logins.Rotate(dir, "gatway"):          `there is no user "gatway": want one of gateway, ingest, purgatory, discovery, relayconn, operator, import, tendril`,
		logins.Rotate(t.TempDir()):            "has no logins: make them with init",
		logins.Rotate(dir, proto.UserTendril): "has no user tendril: make it with init",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if after := users(t, dir); !maps.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	for _, text := range []string{
		"", "{", "authorization { token: x }", "authorization { users = [ {user: gateway} ] }", "\naccounts {\"A\": {\"users\": [{\"user\": \"alice\", \"password\": \"x\"}]}}",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, logins.UsersFile)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		if err := logins.Init(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("%q became %q, %v", text, now, err)
		}
	}
}

func TestReadLogin(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "login")
	if _, err := logins.Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]logins.Login{
		"gateway:secret\n": {User: "gateway", Password: "secret"}, "gateway:se:cr et": {User: "gateway", Password: "se:cr et"},
		"": {}, "gateway": {}, ":secret": {}, "gateway:": {}, "a:secret\nb:c\n": {}, "a:sec\x00ret": {}, "a:" + strings.Repeat("secret", 1000): {},
	} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := logins.Read(path)
		if got != want || (err == nil) != (want != logins.Login{}) || err != nil && strings.Contains(err.Error(), "sec") {
			t.Errorf("%.20q: %v, %v", text, got, err)
		}
	}
}
