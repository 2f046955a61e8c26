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
	"encoding/base32"
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

// UsersFile is the file in the folder that a NATS server includes.
const UsersFile = "users.conf"

// cost is bcrypt's. A password has 160 random bits: nobody finds one by trying, however quickly a
// guess is checked. The server checks one for each connection, and after its restart thousands
// connect at once: at this cost 1,000 checks take about a second of one processor, at the usual
// cost of 11 more than two minutes.
const cost = bcrypt.MinCost

// passwordBytes is how many random bytes a password is made of.
const passwordBytes = 20

// Default are the users that [Init] makes a login for: one of each service, and the operator. The
// others (tendril, import) are made where somebody asks for them.
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
// writes users.conf anew with what all users may do in this version. No password is taken away, and
// none that works is replaced.
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
		case errors.Is(err, fs.ErrNotExist):
			return f.add(user)
		case err != nil:
			return err
		case f.accepts(login):
			return nil
		case Role(login.User) != user:
			return fmt.Errorf("%s is the login of user %q; want one of %s", LoginFile(dir, user), login.User, user)
		case f.knows(user):
			return f.add(user) // the login is an old one, and what was retired stays so
		}
		return f.admit(login) // users.conf was lost
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
		f.entries = slices.DeleteFunc(f.entries, func(e User) bool { return Role(e.Name) == user && e.Name != login.User })
		return nil
	})
}

// Role is the user of proto.Users whose permissions a user of the server has: its name without the
// number that a rotation adds.
func Role(user string) string {
	if i := strings.LastIndexByte(user, '-'); i >= 0 {
		if _, err := strconv.ParseUint(user[i+1:], 10, 31); err == nil {
			return user[:i]
		}
	}
	return user
}

// change reads users.conf, does something for each user, and writes it. One command at a time does.
func change(dir string, users []string, do func(f *folder, user string) error) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	f, err := open(dir)
	if err != nil {
		return err
	}
	if len(users) == 0 {
		if users = f.roles(); len(users) == 0 {
			return fmt.Errorf("%s has no logins: make them with init", dir)
		}
	}
	for _, user := range users {
		if proto.PermissionsOf(user).User == "" {
			return fmt.Errorf("there is no user %q: want one of %s, %s, %s", user, strings.Join(Default(), ", "), proto.UserImport, proto.UserTendril)
		}
		if err := do(f, user); err != nil {
			return err
		}
	}
	return f.save()
}

// folder is what must be written.
type folder struct {
	dir     string
	entries []User
	logins  map[string]Login // new ones, by role
}

// User is a user of the server as users.conf has it: its name, which is a role with or without a
// number, and the bcrypt hash of its password.
type User struct{ Name, Hash string }

func open(dir string) (*folder, error) {
	f := &folder{dir: dir, logins: map[string]Login{}}
	text, err := os.ReadFile(filepath.Join(dir, UsersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		f.entries, err = parse(string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, UsersFile), err)
	}
	return f, nil
}

// roles are the users of proto that there is a login for, in proto's order.
func (f *folder) roles() (users []string) {
	for _, p := range proto.Users() {
		if f.knows(p.User) {
			users = append(users, p.User)
		}
	}
	return users
}

func (f *folder) knows(role string) bool {
	return slices.ContainsFunc(f.entries, func(e User) bool { return Role(e.Name) == role })
}

// accepts reports whether the server that has this folder's users lets the login in.
func (f *folder) accepts(l Login) bool {
	return slices.ContainsFunc(f.entries, func(e User) bool {
		return e.Name == l.User && bcrypt.CompareHashAndPassword([]byte(e.Hash), []byte(l.Password)) == nil
	})
}

// add makes a new login for a role, under the next name that is free.
func (f *folder) add(role string) error {
	highest := 0
	for _, e := range f.entries {
		if e.Name == role {
			highest = max(highest, 1)
		} else if Role(e.Name) == role {
			n, err := strconv.Atoi(strings.TrimPrefix(e.Name, role+"-"))
			if err != nil {
				return fmt.Errorf("number of user %s: %w", e.Name, err)
			}
			highest = max(highest, n)
		}
	}
	name := role
	if highest > 0 {
		name += "-" + strconv.Itoa(highest+1)
	}
	l := Login{User: name, Password: password()}
	f.logins[role] = l
	return f.admit(l)
}

// admit adds a login, or the hash of its new password.
func (f *folder) admit(l Login) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(l.Password), cost)
	if err != nil {
		return fmt.Errorf("hash the password of user %s: %w", l.User, err)
	}
	f.entries = slices.DeleteFunc(f.entries, func(e User) bool { return e.Name == l.User })
	f.entries = append(f.entries, User{l.User, string(hash)})
	return nil
}

// save writes users.conf first: a login that is then missing is made anew under another name, and
// whoever reads a login file finds one that is valid.
func (f *folder) save() error {
	text, err := Render(f.entries)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(f.dir, UsersFile), text); err != nil {
		return err
	}
	for role, l := range f.logins {
		if err := replace(LoginFile(f.dir, role), l.User+":"+l.Password+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// password returns 32 random letters and digits.
func password() string {
	b := make([]byte, passwordBytes)
	rand.Read(b) // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b))
}

// replace writes a file that only its owner may read, so that whoever does sees the old text or the
// new, even after a crash.
func replace(path, text string) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(temp.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	_, err = temp.WriteString(text)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}

// lock keeps a second command off the folder; the end of the process opens it.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder of logins: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.Close()
		return nil, fmt.Errorf("another command works in %s: %w", dir, err)
	}
	return func() { d.Close() }, nil
}
