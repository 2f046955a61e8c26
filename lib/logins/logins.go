// Package logins makes and rotates the logins of a NATS server: for each user of proto.Users a file
// with its name and password, and a file of the server's configuration with the hashes of the
// passwords and what each user may do.
//
// All of it lies in one folder. users.conf is the only record of which passwords are valid. Files
// are replaced by renaming, so a reader sees the old one or the new one; an interrupted command is
// run again.
package logins

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/bcrypt"

	"tendril.dev/proto"
)

const (
	// UsersFile is the file in the folder that a NATS server includes.
	UsersFile = "users.conf"
	// cost is bcrypt's. A password has 130 random bits, so it cannot be found by trying, however
	// quickly a guess is checked. The server checks one for each connection, and after its restart
	// thousands connect at once: at this cost 1,000 checks take about a second of one processor, at
	// the usual cost of 11 more than two minutes.
	cost = bcrypt.MinCost
	// maxLogin bounds a login file, in bytes.
	maxLogin = 4096
)

// Login is a name and a password for the NATS server.
type Login struct {
	User     string
	Password string
}

// Read reads a login file: one line, `user:password`. Its errors do not hold the password; a file
// that is not there is fs.ErrNotExist.
func Read(path string) (Login, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Login{}, err
	}
	line := strings.TrimRight(string(text), "\r\n")
	user, password, ok := strings.Cut(line, ":")
	if !ok || user == "" || password == "" || len(text) > maxLogin || strings.ContainsAny(line, "\r\n\x00") {
		return Login{}, fmt.Errorf("read %s: want one line, user:password", path)
	}
	return Login{user, password}, nil
}

// Default are the users that [Init] makes a login for: one of each service, and the operator. The
// others (tendril, import) are made where they are named.
func Default() []string {
	var names []string
	for _, p := range proto.Users() {
		if p.User != proto.UserTendril && p.User != proto.UserImport {
			names = append(names, p.User)
		}
	}
	return names
}

// LoginFile is the path of a user's login in the folder.
func LoginFile(dir, user string) string { return filepath.Join(dir, user+".login") }

// Init gives each of the users (none named: [Default]) a login that works, unless it has one, and
// writes users.conf again with what all users may do in this version. No password is taken away,
// and none that works is replaced.
func Init(dir string, users ...string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of logins: %w", err)
	}
	if len(users) == 0 {
		users = Default()
	}
	return change(dir, users, func(f *folder, user string) error {
		login, err := Read(LoginFile(dir, user))
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case err == nil && f.accepts(login):
			return nil
		case err == nil && Role(login.User) != user:
			return fmt.Errorf("%s is the login of user %q; want one of %s", LoginFile(dir, user), login.User, user)
		case err == nil && !f.knows(user):
			return f.admit(login) // users.conf was lost
		}
		return f.add(user) // there is none, or an old one: what was retired stays so
	})
}

// Rotate gives each of the users (none named: all that users.conf has) a second name with a new
// password, beside those that it has, and puts it into the user's login file. Both work until
// [Retire].
func Rotate(dir string, users ...string) error {
	return change(dir, users, func(f *folder, user string) error {
		if !f.knows(user) {
			return fmt.Errorf("%s has no user %s: make it with init", filepath.Join(dir, UsersFile), user)
		}
		return f.add(user)
	})
}

// Retire takes away what [Rotate] has replaced: of each of the users (none named: all that
// users.conf has) only the name and password in its login file are left.
func Retire(dir string, users ...string) error {
	return change(dir, users, func(f *folder, user string) error {
		login, err := Read(LoginFile(dir, user))
		if err != nil {
			return err
		}
		if !f.accepts(login) || Role(login.User) != user {
			return fmt.Errorf("%s is no login that %s has: run init first", LoginFile(dir, user), filepath.Join(dir, UsersFile))
		}
		f.users = slices.DeleteFunc(f.users, func(u User) bool { return Role(u.Name) == user && u.Name != login.User })
		return nil
	})
}

// Role is the user of proto.Users whose permissions a user of the server has: its name without the
// number that a rotation adds.
func Role(user string) string {
	role, _ := roleOf(user)
	return role
}

// roleOf is a user's role and its number; without one it is the first.
func roleOf(user string) (role string, number int) {
	if i := strings.LastIndexByte(user, '-'); i >= 0 {
		if n, err := strconv.ParseUint(user[i+1:], 10, 31); err == nil {
			return user[:i], int(n)
		}
	}
	return user, 1
}

// folder is what must be written.
type folder struct {
	dir    string
	users  []User
	logins map[string]Login // new ones, by role
}

// change reads users.conf, does something for each user, and writes it. One command at a time does.
func change(dir string, users []string, do func(f *folder, user string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the folder of logins: %w", err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another command works in %s: %w", dir, err)
	}
	f := &folder{dir: dir, logins: map[string]Login{}}
	path := filepath.Join(dir, UsersFile)
	text, err := os.ReadFile(path)
	if err == nil {
		f.users, err = parse(string(text))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(users) == 0 {
		for _, p := range proto.Users() {
			if f.knows(p.User) {
				users = append(users, p.User)
			}
		}
	}
	if len(users) == 0 {
		return fmt.Errorf("%s has no logins: make them with init", dir)
	}
	for _, user := range users {
		if proto.PermissionsOf(user).User == "" {
			return fmt.Errorf("there is no user %q: want one of %s, %s, %s", user, strings.Join(Default(), ", "),
				proto.UserImport, proto.UserTendril)
		}
		if err := do(f, user); err != nil {
			return err
		}
	}
	return f.save()
}

func (f *folder) knows(role string) bool {
	return slices.ContainsFunc(f.users, func(u User) bool { return Role(u.Name) == role })
}

// accepts reports whether the server that has this folder's users lets the login in.
func (f *folder) accepts(l Login) bool {
	return slices.ContainsFunc(f.users, func(u User) bool {
		return u.Name == l.User && bcrypt.CompareHashAndPassword([]byte(u.Hash), []byte(l.Password)) == nil
	})
}

// add makes a new login for a role, under the next number.
func (f *folder) add(role string) error {
	highest := 0
	for _, u := range f.users {
		if of, number := roleOf(u.Name); of == role {
			highest = max(highest, number)
		}
	}
	l := Login{User: role, Password: rand.Text()}
	if highest > 0 {
		l.User += "-" + strconv.Itoa(highest+1)
	}
	f.logins[role] = l
	return f.admit(l)
}

// admit adds a login, or the hash of its new password.
func (f *folder) admit(l Login) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(l.Password), cost)
	if err != nil {
		return fmt.Errorf("hash the password of user %s: %w", l.User, err)
	}
	f.users = slices.DeleteFunc(f.users, func(u User) bool { return u.Name == l.User })
	f.users = append(f.users, User{Name: l.User, Hash: string(hash)})
	return nil
}

// save writes users.conf first: a login that is then missing is made under another name, and a
// login file that is read is always valid.
func (f *folder) save() error {
	text, err := Render(f.users)
	if err == nil {
		err = replace(filepath.Join(f.dir, UsersFile), text)
	}
	for role, l := range f.logins {
		if err == nil {
			err = replace(LoginFile(f.dir, role), l.User+":"+l.Password+"\n")
		}
	}
	return err
}

// replace writes a file that only its owner may read, so that a reader sees the old text or the new
// one, even after a crash.
func replace(path, text string) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = temp.WriteString(text)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		os.Remove(temp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
