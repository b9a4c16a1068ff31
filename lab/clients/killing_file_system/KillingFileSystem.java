import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Local files as killing:///path. Before it does a step that others can see (a file begins, gets
 * its name, goes), it kills a process group with SIGKILL: once before each step, by its name.
 *
 *   fs.killing.steps   a local file: the steps that were killed at, a line each
 *   fs.killing.group   the process group
 *   fs.killing.only    of the steps those that this expression finds
 *
 * Numbers and ids in a step's name are left out, but for those of a query's logs.
 */
public final class KillingFileSystem extends RawLocalFileSystem {
    private static final String IDS = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}";
    private static final String LOGS = ".*/(offsets|commits|_spark_metadata|sources/[0-9]+)/[0-9]+";

    @Override
    public URI getUri() {
        return URI.create("killing:///");
    }

    @Override
    public FSDataOutputStream create(
            Path path, boolean overwrite, int buffer, short copies, long block, Progressable told)
            throws IOException {
        step("create", path);
        return super.create(path, overwrite, buffer, copies, block, told);
    }

    @Override
    public FSDataOutputStream create(
            Path path,
            FsPermission rights,
            boolean overwrite,
            int buffer,
            short copies,
            long block,
            Progressable told)
            throws IOException {
        step("create", path);
        return super.create(path, rights, overwrite, buffer, copies, block, told);
    }

    @Override
    public boolean rename(Path from, Path to) throws IOException {
        step("rename", to);
        return super.rename(from, to);
    }

    @Override
    public boolean delete(Path path, boolean below) throws IOException {
        step("delete", path);
        return super.delete(path, below);
    }

    private void step(String what, Path path) throws IOException {
        String full = path.toUri().getPath();
        // Readers do not look at these; what is made of them is seen when it gets its name.
        if (path.getName().startsWith(".") || what.equals("create") && full.contains("/_temp")) {
            return;
        }
        String place = full.replaceFirst("^.*/killing/", "").replaceAll(IDS, "U");
        String name = what + " " + (full.matches(LOGS) ? place : place.replaceAll("[0-9]+", "N"));
        synchronized (KillingFileSystem.class) {
            Configuration conf = getConf();
            if (!name.matches(".*(" + conf.get("fs.killing.only", "") + ").*")) {
                return;
            }
            java.nio.file.Path steps = Paths.get(conf.get("fs.killing.steps"));
            List<String> before = Files.exists(steps) ? Files.readAllLines(steps) : List.of();
            if (before.contains(name)) {
                return;
            }
            Files.writeString(
                    steps, name + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            new ProcessBuilder("kill", "-KILL", "--", "-" + conf.get("fs.killing.group")).start();
            while (true) {
                try {
                    Thread.sleep(1000);
                } catch (InterruptedException stopped) {
                    // Not before it is killed.
                }
            }
        }
    }
}
