import java.nio.file.Path;
import java.util.Map;
import java.util.Set;

import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/**
 * One node of Elasticsearch 8 or later on loopback, from jars alone: no distribution, so no security and no scripts.
 * Arguments: its folder, with the plugins that it has in modules/, the port of its REST interface, the port between nodes.
 */
public class ElasticsearchNode {
    public static void main(String[] arguments) throws Exception {
        LogConfigurator.configureESLogging();
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("path.repo", arguments[0] + "/snapshots")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("network.host", "127.0.0.1")
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("cluster.name", "peer")
            .put("discovery.type", "single-node")
            // Or it creates no index on a disk that is almost full.
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        var environment = InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer");
        var modules = PluginsLoader.loadModulesBundles(Path.of(arguments[0], "modules"));
        new Node(environment, PluginsLoader.createPluginsLoader(modules, Set.of(), Map.of())).start();
        Thread.currentThread().join();
    }
}
