package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/logins"
)

// loginsCommand makes and rotates the logins of a NATS server that several processes share.
type loginsCommand struct {
	Init   loginsInit   `cmd:"" help:"Make a login for each service and for the operator, in FOLDER, and the NATS server's users.conf. Run again, it keeps all passwords and writes again what each user may do: do so with a new version of tendril."`
	Rotate loginsRotate `cmd:"" help:"Give users a new name and password beside the old ones, which stay valid until retire."`
	Retire loginsRetire `cmd:"" help:"Take away the names and passwords that rotate has replaced."`
}

// loginsFolder is what the commands work on.
type loginsFolder struct {
	Folder string   `arg:"" help:"Folder of the logins: users.conf and a file USER.login for each user."`
	Users  []string `arg:"" optional:"" name:"user" help:"Only these users."`
}

type (
	loginsInit   struct{ loginsFolder }
	loginsRotate struct{ loginsFolder }
	loginsRetire struct{ loginsFolder }
)

// Run implements the command.
func (c *loginsInit) Run(k *kong.Kong) error {
	if err := logins.Init(c.Folder, c.Users...); err != nil {
		return err
	}
	return c.tell(k.Stdout, "%s is up to date; the logins are beside it\n")
}

// Run implements the command.
func (c *loginsRotate) Run(k *kong.Kong) error {
	if err := logins.Rotate(c.Folder, c.Users...); err != nil {
		return err
	}
	return c.tell(k.Stdout, "%s has new users beside the old ones: let the NATS servers reload it, give the services their new logins, then retire the old ones\n")
}

// Run implements the command.
func (c *loginsRetire) Run(k *kong.Kong) error {
	if err := logins.Retire(c.Folder, c.Users...); err != nil {
		return err
	}
	return c.tell(k.Stdout, "%s has only the logins beside it: let the NATS servers reload it\n")
}

// tell says what was done. Passwords are never printed.
func (f loginsFolder) tell(out io.Writer, format string) error {
	_, err := fmt.Fprintf(out, format, filepath.Join(f.Folder, logins.UsersFile))
	return err
}
