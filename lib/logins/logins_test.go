package logins_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"golang.org/x/crypto/bcrypt"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// folder has the logins of a new deployment.
func folder(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "logins")
	if err := logins.Init(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// users are the users of a folder's users.conf, as NATS reads it, and their hashes.
func users(t *testing.T, dir string) map[string]string {
	t.Helper()
	options, err := natsserver.ProcessConfigFile(filepath.Join(dir, logins.UsersFile))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, u := range options.Users {
		found[u.Username] = u.Password
	}
	return found
}

func read(t *testing.T, dir, user string) logins.Login {
	t.Helper()
	login, err := logins.Read(logins.LoginFile(dir, user))
	if err != nil {
		t.Fatal(err)
	}
	return login
}

func accepts(users map[string]string, l logins.Login) bool {
	return bcrypt.CompareHashAndPassword([]byte(users[l.User]), []byte(l.Password)) == nil
}

func TestInitMakesLoginsOnce(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	first := map[string]logins.Login{}
	passwords := map[string]bool{}
	for _, user := range logins.Default() {
		l := read(t, dir, user)
		if l.User != user || len(l.Password) != 26 || passwords[l.Password] || !accepts(users(t, dir), l) {
			t.Errorf("%s: user %q, %d letters", user, l.User, len(l.Password))
		}
		first[user], passwords[l.Password] = l, true
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(logins.Default())+1 {
		t.Errorf("files: %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for password := range passwords {
			if f.Name() == logins.UsersFile && strings.Contains(string(text), password) {
				t.Error("users.conf holds a password")
			}
		}
	}
	before := users(t, dir)
	if err := logins.Init(dir, proto.UserTendril); err != nil {
		t.Fatal(err)
	}
	after := users(t, dir)
	for user, l := range first {
		if read(t, dir, user) != l || after[user] != before[user] {
			t.Errorf("the login of %s was changed", user)
		}
	}
	if !accepts(after, read(t, dir, proto.UserTendril)) || len(after) != len(before)+1 {
		t.Error("no login for another user")
	}
}

// TestInitWritesPermissionsAnew: a users.conf of another version has its hashes, and what users may
// do is of this one.
func TestInitWritesPermissionsAnew(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, logins.UsersFile)
	right, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.ReplaceAll(string(right), `"grasp.candidate.user"`, `"grasp.candidate"`)
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := logins.Init(dir); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(right) {
		t.Errorf("written again it differs, %v", err)
	}
}

func TestRotateAndRetire(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	one, other := read(t, dir, "gateway"), read(t, dir, "ingest")
	if err := logins.Rotate(dir, "gateway"); err != nil {
		t.Fatal(err)
	}
	two, both := read(t, dir, "gateway"), users(t, dir)
	if two.User != "gateway-2" || logins.Role(two.User) != "gateway" || !accepts(both, one) || !accepts(both, two) || two.Password == one.Password {
		t.Errorf("after rotate: %s, of %v", two.User, both)
	}
	// As often as it is run: the names go on.
	if err := logins.Rotate(dir); err != nil {
		t.Fatal(err)
	}
	three := read(t, dir, "gateway")
	if err := logins.Init(dir); err != nil {
		t.Fatal(err)
	}
	if three.User != "gateway-3" || read(t, dir, "gateway") != three || read(t, dir, "ingest").User != "ingest-2" {
		t.Errorf("after two: %s", three.User)
	}
	for range 2 {
		if err := logins.Retire(dir); err != nil {
			t.Fatal(err)
		}
	}
	left := users(t, dir)
	if !accepts(left, three) || accepts(left, two) || accepts(left, one) || accepts(left, other) || len(left) != len(logins.Default()) {
		t.Errorf("after retire: %v", left)
	}
	if err := logins.Rotate(dir, "gateway"); err != nil || read(t, dir, "gateway").User != "gateway-4" {
		t.Errorf("the name of a retired user is used again: %v", err)
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			other := read(t, dir, "ingest")
			if err := interrupt(dir); err != nil {
				t.Fatal(err)
			}
			if err := logins.Init(dir); err != nil {
				t.Fatal(err)
			}
			now := users(t, dir)
			for _, user := range logins.Default() {
				if !accepts(now, read(t, dir, user)) {
					t.Errorf("the login of %s does not work", user)
				}
			}
			if read(t, dir, "ingest") != other {
				t.Error("a login that worked was replaced")
			}
			if retired := read(t, dir, "gateway"); name == "an older login is back" && retired.User != "gateway-3" {
				t.Errorf("%s: a password that was retired works again", retired.User)
			}
		})
	}
}

func TestRefusedCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.Remove(logins.LoginFile(dir, "gateway")); err != nil {
		t.Fatal(err)
	}
	before := users(t, dir)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"retire without the login": {logins.Retire(dir), "gateway.login: no such file"},
		"an unknown user":          {logins.Rotate(dir, "gatway"), `there is no user "gatway": want one of gateway, ingest, purgatory, discovery, relayconn, operator, import, tendril`},
		"rotate nothing":           {logins.Rotate(t.TempDir()), "has no logins: make them with init"},
		"no such user yet":         {logins.Rotate(dir, proto.UserTendril), "has no user tendril: make it with init"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, c.err, c.want)
		}
	}
	if after := users(t, dir); len(after) != len(before) {
		t.Errorf("%v became %v", before, after)
	}
}

// TestForeignUsersConf: a foreign file is not written over.
func TestForeignUsersConf(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "{", "authorization { token: x }", "authorization { users = [ {user: gateway} ] }",
		`authorization { users = [ {user: "alice", password: "x"} ] }`, `authorization { users = [ "gateway" ] }`,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, logins.UsersFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
		"gateway:secret\n":                    {User: "gateway", Password: "secret"},
		"gateway:secret":                      {User: "gateway", Password: "secret"},
		"gateway:se:cr et\n":                  {User: "gateway", Password: "se:cr et"},
		"":                                    {},
		"gateway":                             {},
		":secret":                             {},
		"gateway:":                            {},
		"a:secret\nb:c\n":                     {},
		"a:sec\x00ret":                        {},
		"a:" + strings.Repeat("secret", 1000): {},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := logins.Read(path)
		if got != want || (err == nil) != (want != logins.Login{}) {
			t.Errorf("%.20q: %v, %v", text, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "sec") {
			t.Errorf("%.20q: the error tells the password: %v", text, err)
		}
	}
}

func TestRole(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		"gateway": "gateway", "gateway-2": "gateway", "gateway-x": "gateway-x", "gateway-": "gateway-", "a-b-3": "a-b", "": "",
	} {
		if got := logins.Role(user); got != want {
			t.Errorf("%q: %q, want %q", user, got, want)
		}
	}
}
